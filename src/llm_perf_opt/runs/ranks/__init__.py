"""Several ranks of one run: started by us, and joined into one summary."""
