"""Nsight Systems."""
