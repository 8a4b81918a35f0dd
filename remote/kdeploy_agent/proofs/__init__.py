"""Patch sets' proofs, run here."""
