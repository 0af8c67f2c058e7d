"""Sensors of CPUs and GPUs: power, clock, temperature, memory."""
