"""What a capture covers: of which range it is, and whether it holds all of it."""
