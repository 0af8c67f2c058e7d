"""Count FLOPs, bytes and memory of a model on the meta device."""
