"""The phases of inference, and how they are named in files and reports."""

from __future__ import annotations

VISION = "vision"
PREFILL = "prefill"
DECODE = "decode"
PHASES = (VISION, PREFILL, DECODE)
"""In the order they run."""
WHOLE = "all"
"""What is known of a capture as a whole, without its phases."""


def captured_count_name(phase: str) -> str:
    """Return the name, among a summary's metrics, of how often the captures hold a phase (decode: steps)."""
    return f"captured_{phase}_count"
