"""Nsight Compute command lines, at the module path of the specification; defined in :mod:`llm_perf_opt.stages.ncu.command`."""

from llm_perf_opt.stages.ncu.command import build_import_cmd, build_ncu_cmd

__all__ = ["build_import_cmd", "build_ncu_cmd"]
