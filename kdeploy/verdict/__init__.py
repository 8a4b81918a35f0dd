"""Judging a candidate: what to ask it, how to read its answers, and whether it may serve."""
