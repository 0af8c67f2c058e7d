"""The phases of inference, and how they are named in files and reports."""

from __future__ import annotations

VISION = "vision"
PREFILL = "prefill"
DECODE = "decode"
MIXED = "mixed"
"""A step of an engine that holds prompts of some requests and next tokens of others."""
REQUEST_PHASES = (VISION, PREFILL, DECODE)
"""What one request goes through, in order: what is timed by itself and counted on paper. A mixed step belongs to
many requests, so only captures know it."""
PHASES = (VISION, PREFILL, MIXED, DECODE)
"""All that a capture can hold, in the order they are shown."""
WHOLE = "all"
"""What is known of a capture as a whole, without its phases."""


def captured_count_name(phase: str) -> str:
    """Return the name, among a summary's metrics, of how often the captures hold a phase (decode: steps)."""
    return f"captured_{phase}_count"
