"""The improve verb: every advice becomes an experiment."""
