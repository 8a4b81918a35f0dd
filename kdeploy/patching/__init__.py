"""Patches: where each would act, whether it may, and the bytes that result. Pure: nothing here writes."""
