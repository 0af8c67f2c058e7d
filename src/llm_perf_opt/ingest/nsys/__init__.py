"""Nsight Systems' exports and tables."""
