"""Ratios against peers, each measured in one run on one machine."""
