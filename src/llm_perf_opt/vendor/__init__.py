"""Vendor tools: commands, running them, and understanding what they say."""
