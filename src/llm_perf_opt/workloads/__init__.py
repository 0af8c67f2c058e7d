"""Models, datasets, the inference engine, its outputs, and counting without weights."""
