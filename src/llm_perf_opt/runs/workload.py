"""The workload alone, as profiled by Nsight. Same engine and configuration, without stages and report.

Started by captures as ``python -m llm_perf_opt.runs.workload key=value …``; runs in
``tmp/workload/`` and leaves its timings, predictions and gallery there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.command_line import print_error
from llm_perf_opt.core.console.logs import console_logging
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.ranks import GROUP_VARIABLE, this_rank
from llm_perf_opt.process.environment import prepare_process
from llm_perf_opt.workloads.rank_group import apply_process_settings

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

STAGE = "torch_profiler"
"""Whose output settings apply, and below whose name results go (they are not user-facing)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workload once through; errors are one message and an exit code."""
    overrides = list(sys.argv[1:] if argv is None else argv)
    console_logging()
    prepare_process()
    try:
        run(overrides)
    except LlmPerfError as error:
        return print_error(error)
    return 0


def run(overrides: Sequence[str]) -> Path:
    """Compose, run, write; return the directory."""
    from llm_perf_opt.config.compose import typed_config
    from llm_perf_opt.config.hydra_bridge.compose import changes_directory, compose_raw, run_directory
    from llm_perf_opt.core.console.progress import LogProgress
    from llm_perf_opt.stages.torch_profiler.config import TorchProfilerConfig
    from llm_perf_opt.workloads.measure import measure
    from llm_perf_opt.workloads.outputs.config import OutputConfig
    from llm_perf_opt.workloads.setup import resolve_adapters, workload_config

    raw = compose_raw(overrides)
    config = resolve_adapters(typed_config(raw, overrides))
    apply_process_settings(config.run)
    folder = run_directory(raw) / STAGE
    folder.mkdir(parents=True, exist_ok=True)
    if changes_directory(raw):
        os.chdir(folder.parent)
    stage = config.pipeline[STAGE]
    output = stage.output if isinstance(stage, TorchProfilerConfig) else OutputConfig()
    # A capture needs one pass unless more are requested: under a tool, precise times are not needed.
    workload = workload_config(config, repeats=config.run.repeats or 1)
    with _group(config):
        measure(workload, output, STAGE, folder, progress=LogProgress())
    return folder.parent


@contextlib.contextmanager
def _group(config: AppConfig) -> Iterator[None]:
    """Join the process group of the other ranks' programs, for a capture of several ranks."""
    rank = this_rank()
    if rank is None:
        yield
        return
    from llm_perf_opt.workloads.engine.nvtx import mark
    from llm_perf_opt.workloads.rank_group import enter_group, leave_group

    mark(rank.mark)
    enter_group(rank, config.resolved_device, config.run.ranks_timeout_s, name=os.environ.get(GROUP_VARIABLE))
    try:
        yield
    finally:
        leave_group()


if __name__ == "__main__":
    sys.exit(main())
