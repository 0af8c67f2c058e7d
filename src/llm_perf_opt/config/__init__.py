"""The typed configuration: schema, composition, checks and legacy keys."""
