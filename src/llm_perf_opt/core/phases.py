"""The phases of inference, and how they are named in files and reports."""

from __future__ import annotations

VISION = "vision"
PREFILL = "prefill"
DECODE = "decode"
PHASES = (VISION, PREFILL, DECODE)
"""In the order they run."""
WHOLE = "all"
"""What is known of a capture as a whole, without its phases."""
