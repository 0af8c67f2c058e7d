"""One line of JSON per run."""
