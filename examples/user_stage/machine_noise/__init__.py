"""How steady is this machine? A stage of a user's own."""
