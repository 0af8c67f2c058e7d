"""A large trace read by several processes, one part of the text each."""
