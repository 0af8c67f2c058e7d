"""Conformance suites for stages, models and data sets, used by our own tests and by plug-in authors."""
