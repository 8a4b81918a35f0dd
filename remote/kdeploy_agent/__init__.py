"""What runs on a host: one zip file, standard library only, Python 3.8 or newer. ARCHITECTURE.md has its protocol."""
