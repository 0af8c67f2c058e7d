"""Two summaries against each other."""
