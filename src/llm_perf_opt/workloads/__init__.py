"""Models, datasets and the inference engine that is measured."""
