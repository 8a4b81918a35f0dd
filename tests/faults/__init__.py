"""Ways to break a server, each a patch set: what the gate must say to it, and to changes that break nothing."""
