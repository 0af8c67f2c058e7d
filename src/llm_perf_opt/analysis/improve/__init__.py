"""Deciding experiments: pure functions over measured passes and answers."""
