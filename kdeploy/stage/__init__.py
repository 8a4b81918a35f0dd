"""Staging: the base from PyPI, the patched tree in git, the proofs. All in a cache that may be deleted."""
