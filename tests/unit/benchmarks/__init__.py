"""Tests of what benchmarks are made of."""
