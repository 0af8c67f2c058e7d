"""Tables into facts: pure functions without I/O."""
