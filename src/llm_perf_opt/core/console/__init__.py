"""The terminal: commands, messages, progress, signals, and what is said when nothing else can be."""
