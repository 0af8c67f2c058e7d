"""PyTorch profiler traces (Kineto's Chrome JSON)."""
