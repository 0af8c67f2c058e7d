"""Entry points that tie configuration, stages and reports together."""
