"""The compare verb."""
