"""kdeploy: declarative deployment and patch-set management for SGLang."""

__version__ = "0.1.0"
