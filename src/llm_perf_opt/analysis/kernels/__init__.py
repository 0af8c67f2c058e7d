"""Kernel names: families, short names, demangling, matching between tools."""
