"""The verbs of the command line that belong to no feature package."""
