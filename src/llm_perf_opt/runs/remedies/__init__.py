"""Remedies: what can be tried against a finding, as data."""
