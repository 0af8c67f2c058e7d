"""Predictions, their scores and the gallery."""
