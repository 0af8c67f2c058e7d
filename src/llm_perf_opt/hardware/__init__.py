"""What machines can do: catalogue and measurement."""
