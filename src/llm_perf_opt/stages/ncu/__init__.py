"""The Nsight Compute stage."""
