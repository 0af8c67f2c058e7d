"""Pipeline stages: each writes files under its own directory and nothing else."""
