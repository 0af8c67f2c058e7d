"""Checkpoints with weights in few bits: which parameters, and how many bytes they take."""
