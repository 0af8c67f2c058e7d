"""Nsight Systems and Nsight Compute: command lines, processes, diagnosis."""
