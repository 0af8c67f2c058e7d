"""The phases of inference, and how they are named in files and reports."""

from __future__ import annotations

VISION = "vision"
ENCODE = "encode"
"""The encoder of an encoder-decoder (text, speech); its decoder's prompt is the prefill."""
PREFILL = "prefill"
DECODE = "decode"
MIXED = "mixed"
"""A step of an engine that holds prompts of some requests and next tokens of others."""
DRAFT = "draft"
"""Speculative decoding: the draft model proposes tokens."""
VERIFY = "verify"
"""Speculative decoding: the model checks proposed tokens, and so decodes several at once."""
BEFORE_PREFILL = (VISION, ENCODE)
"""What a request may go through before its prefill; a model has one of them or none. Part of the time to first token."""
REQUEST_PHASES = (*BEFORE_PREFILL, PREFILL, DECODE)
"""What one request goes through, in order: what is timed separately and counted by the static analysis. A mixed step belongs to
many requests, so only captures know it."""
PHASES = (*BEFORE_PREFILL, PREFILL, MIXED, DRAFT, VERIFY, DECODE)
"""All that a capture can hold, in the order they are shown."""
WHOLE = "all"
"""What is known of a capture as a whole, without its phases."""


def captured_count_name(phase: str) -> str:
    """Return the name, among a summary's metrics, of how often the captures hold a phase (decode: steps)."""
    return f"captured_{phase}_count"
