"""Nsight Compute's reports and tables."""
