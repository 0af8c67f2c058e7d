"""FLOPs, bytes and memory on paper."""
