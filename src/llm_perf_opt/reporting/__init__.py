"""Summary into documents; nothing is computed here."""
