"""What changed between two sides, and why: one sentence, and the causes ranked."""
