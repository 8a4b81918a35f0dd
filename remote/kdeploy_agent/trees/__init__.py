"""What a release is on this host: its files, its runtime, what it runs, and how long it is kept."""
