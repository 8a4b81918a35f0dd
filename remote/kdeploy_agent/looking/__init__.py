"""Looking at the host, and changing nothing."""
