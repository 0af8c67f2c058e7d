"""Typed configuration: schema, composition, legacy keys."""
