"""torch.profiler."""
