"""Run directories, provenance, ranges and vendor tools."""
