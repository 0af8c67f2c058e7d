"""Limits, floors, utilisation, other devices."""
