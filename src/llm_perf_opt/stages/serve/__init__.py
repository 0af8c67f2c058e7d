"""A server under load."""
