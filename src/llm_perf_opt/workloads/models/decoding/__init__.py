"""How a transformers model is run token by token: its state and caches, steps of a fixed shape, CUDA graphs."""
