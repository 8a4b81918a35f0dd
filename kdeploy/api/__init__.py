"""The public verbs: each takes plain values, gives a frozen result, and raises a KdeployError that says what to do."""
