"""One page a release: what it was asked, what it answered, and why it may serve or not. One file, no network."""
