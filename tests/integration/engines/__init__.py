"""Sweeps on real engines: Slurm and Ray on this machine, with made-up GPUs."""
