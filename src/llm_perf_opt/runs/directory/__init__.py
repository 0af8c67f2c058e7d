"""Who may write in a run directory, what lay there before, and where runs of earlier releases lay."""
