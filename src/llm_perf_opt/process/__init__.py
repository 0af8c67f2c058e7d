"""Start, limit and end programs; find tools."""
