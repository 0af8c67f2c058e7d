"""The static model of a run: FLOPs, bytes, parameters and memory without running it."""
