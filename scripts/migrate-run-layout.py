#!/usr/bin/env python3
"""Flatten run directories of earlier releases; the same as `llm-perf-opt migrate`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from llm_perf_opt.commands.migrate import main
from llm_perf_opt.core.console.command_line import run_guarded

if __name__ == "__main__":
    sys.exit(run_guarded(main, sys.argv[1:]))
