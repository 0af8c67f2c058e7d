"""Nsight Compute metrics: work, limits and vendor rules of each kernel."""
