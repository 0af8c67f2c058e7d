"""Many runs over time: index, trends, step changes, baselines."""
