"""What the two old entry points share: one notice, then the orchestrator with equivalent toggles."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_perf_opt.runners.profile_orchestrator import main as orchestrate


def run_deprecated(name: str, toggles: Sequence[str], argv: Sequence[str] | None) -> int:
    """Print the deprecation notice once and run; the user's own overrides come last and win."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    print(
        f"{name} is deprecated and will be removed in the next release; use: llm-perf-opt run {' '.join(toggles)}",
        file=sys.stderr,
    )
    return orchestrate([*toggles, *arguments])
