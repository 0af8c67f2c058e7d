"""What reports say, as tables and texts without a format."""
