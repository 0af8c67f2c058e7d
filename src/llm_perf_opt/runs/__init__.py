"""One run: prepare, execute, record, assemble, report."""
