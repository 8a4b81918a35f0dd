"""Keeping processes: by systemd, by a supervisor of ours, or as they were found."""
