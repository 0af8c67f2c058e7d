"""Nsight Systems command lines, at the module path of the specification; defined in :mod:`llm_perf_opt.stages.nsys.command`."""

from llm_perf_opt.stages.nsys.command import build_export_cmd, build_nsys_cmd, build_stats_cmd

__all__ = ["build_export_cmd", "build_nsys_cmd", "build_stats_cmd"]
