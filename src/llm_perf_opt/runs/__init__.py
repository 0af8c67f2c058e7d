"""One run from configuration to report, and the verbs around it."""
