"""Findings about kernels; what they share is in ``kernel_rows``."""
