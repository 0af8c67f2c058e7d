"""Memory of a pass: what was in use, and what the static model says it needs."""
