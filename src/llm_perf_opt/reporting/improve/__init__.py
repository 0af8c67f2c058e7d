"""improve.html, improve.md and what the console says of a search."""
