"""Many runs of one command: checked together, started by an engine, told of by their own files."""
