"""Datasets: OmniDocBench, prompts, audio, generated pages."""
