"""Changing what is served: single effects, the transaction, who carries it out, and what a boot does."""
