"""The inference loop and everything measured in it."""
