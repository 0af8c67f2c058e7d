"""Pure data: what is measured, joined, compared and stored."""
