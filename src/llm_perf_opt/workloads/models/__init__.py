"""Model adapters, loading of checkpoints, and decoding."""
