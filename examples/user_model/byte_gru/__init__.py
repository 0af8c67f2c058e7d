"""A user's own model for llm-perf-opt."""
