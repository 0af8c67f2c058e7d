"""What a device tells of itself while it works: one small interface, one module per source."""
