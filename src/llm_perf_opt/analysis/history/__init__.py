"""Runs over time: rows of an index, trends, changes of level."""
