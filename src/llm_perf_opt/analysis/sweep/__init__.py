"""What the jobs of a sweep say together: pure functions over rows of metrics."""
