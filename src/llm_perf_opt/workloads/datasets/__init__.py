"""Datasets: where the samples come from."""
