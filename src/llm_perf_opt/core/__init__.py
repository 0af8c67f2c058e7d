"""What every room uses and that uses no room: errors, files, units, names."""
