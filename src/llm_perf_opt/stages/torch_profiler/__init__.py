"""The PyTorch profiler stage."""
