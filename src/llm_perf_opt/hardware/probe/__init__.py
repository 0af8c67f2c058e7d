"""Ceilings of this machine: measured in a process of its own, kept from run to run."""
