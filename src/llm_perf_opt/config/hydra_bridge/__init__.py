"""The only code that imports Hydra: composition, overrides, errors, jobs and sweeps."""
