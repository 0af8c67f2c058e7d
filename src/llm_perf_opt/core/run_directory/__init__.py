"""The directory of a run: its folders, the names of its files, and which of them are the run's own."""
