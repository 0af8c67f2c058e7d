"""Compare two runs or configurations: metrics, causes, gates, pages."""
