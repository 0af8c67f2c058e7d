"""Try remedies by experiment and keep what helps."""
