"""What kernel names mean: families, readable names, the same kernel in two tools."""
