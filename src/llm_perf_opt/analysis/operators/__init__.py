"""Operators of a PyTorch trace: FLOPs, tables, and operators behind CUDA graphs."""
