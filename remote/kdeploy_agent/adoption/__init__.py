"""Making what somebody started by hand a release of its own."""
