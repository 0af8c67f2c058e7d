"""Structure-aware fuzzing of everything that reads a file: ``python -m tests.faults.fuzz --inputs 20000``."""
