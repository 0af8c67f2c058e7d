"""Run many configurations and report them together."""
