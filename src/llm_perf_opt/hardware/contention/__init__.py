"""Who else uses a device: other programs on the processor cores, other processes on the GPU."""
