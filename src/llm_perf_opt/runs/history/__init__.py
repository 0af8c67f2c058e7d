"""The index of many runs, and what is made from it."""
