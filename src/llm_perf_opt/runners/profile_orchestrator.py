"""``python -m llm_perf_opt.runners.profile_orchestrator``: the same as ``llm-perf-opt run``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llm_perf_opt.commands import run
from llm_perf_opt.core.console.command_line import run_guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code (see :mod:`llm_perf_opt.core.errors`)."""
    return run_guarded(run.main, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
