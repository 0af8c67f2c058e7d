"""Every decoder family transformers offers, at sizes that run in a moment."""
