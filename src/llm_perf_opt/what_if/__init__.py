"""Expected times of a counted model on devices, sizes and types that were not measured."""
