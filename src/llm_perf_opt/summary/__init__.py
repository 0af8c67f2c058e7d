"""The machine-readable result of a run."""
