"""Files into typed tables."""
