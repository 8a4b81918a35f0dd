"""What everything stands on: the disk, the lock, the journal, the kernel's view of processes, the protocol."""
