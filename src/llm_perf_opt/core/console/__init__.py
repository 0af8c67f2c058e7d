"""The command line, logging, progress and signals."""
