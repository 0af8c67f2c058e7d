"""doctor --self-test: check this machine's tools on a program with known work."""
