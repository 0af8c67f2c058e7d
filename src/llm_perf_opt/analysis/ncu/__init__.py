"""From hardware counters to bounds and targets."""
