"""Operators of a trace: tables, the work they do, and whose kernels a graph runs."""
