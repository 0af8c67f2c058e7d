"""Models without weights, for counting: inputs by their shape, and what code asks of values that are not there."""
