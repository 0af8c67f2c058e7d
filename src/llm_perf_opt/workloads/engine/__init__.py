"""The one inference loop, its clocks and its results."""
