"""Counting a model on the meta device."""
