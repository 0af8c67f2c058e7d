"""Errors, files, units, escaping, console, signals and the layout of a run directory. Imports nothing else of the package."""
