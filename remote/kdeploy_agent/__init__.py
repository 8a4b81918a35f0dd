"""What runs on a host: Python 3.8 or newer and its standard library, nothing else."""

from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
"""Where this agent comes from: the zip file that was pushed, or the folder beside it in development."""
