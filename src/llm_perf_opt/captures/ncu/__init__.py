"""Nsight Compute reports and CSV files."""
