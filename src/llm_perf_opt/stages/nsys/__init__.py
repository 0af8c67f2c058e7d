"""The Nsight Systems stage."""
