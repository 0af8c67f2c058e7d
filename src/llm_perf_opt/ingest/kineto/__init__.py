"""The torch profiler's traces."""
