"""Tests of runs of several ranks."""
