"""What other tools say of the same files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def ask_peer(python: Path, format_: str, files: Sequence[Path]) -> str | None:
    """Ask HolisticTraceAnalysis (torch traces) or nsys-ai (nsys exports)."""
    return None
