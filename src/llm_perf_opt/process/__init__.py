"""The only door to other programs."""
