"""Serving as a feature: the verb ``serve``."""
