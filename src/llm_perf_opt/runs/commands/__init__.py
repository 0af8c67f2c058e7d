"""The verbs around a run, one module each."""
