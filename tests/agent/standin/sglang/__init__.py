"""Stands for SGLang (see README.md beside this package)."""

__version__ = "@VERSION@"
