"""The page and the console table of a history."""
