"""A capture for each of several ranks: a session, a program and a file of its own."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.core.ranks import GROUP_VARIABLE, Rank
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.vendor.nsys.config import NsysConfig
from llm_perf_opt.vendor.nsys.run import CaptureRequest


def of_rank(request: CaptureRequest, rank: Rank | None) -> CaptureRequest:
    """Return the capture of one rank: a file that names it, and a program that meets those of the other ranks."""
    if rank is None:
        return request
    group = {GROUP_VARIABLE: f"nsys/{request.base.name}"}
    return replace(
        request,
        base=request.base.with_name(f"{request.base.name}.rank{rank.rank}"),
        rank=rank.rank,
        workload=replace(request.workload, env={**request.workload.env, **group}),
    )


def range_end(config: NsysConfig, rank: Rank | None) -> str | None:
    """Return what ends a capture; of several ranks none is ended while the others are in the middle of a step."""
    return config.capture_range_end or (None if rank is None else "stop")


def must_see_each_other(rank: Rank | None, device: str) -> bool:
    """Whether ranks may not have namespaces of their own: NCCL takes those of another one for another machine's."""
    return rank is not None and device.startswith("cuda")


def rank_problems(config: NsysConfig, rank: Rank | None, device: str) -> list[Problem]:
    """Look for settings that do not go with several ranks."""
    if rank is None:
        return []
    problems = []
    if config.isolate and must_see_each_other(rank, device):
        problems.append(
            Problem(
                "error",
                "pipeline.nsys.isolate=true hides the ranks from one another, and NCCL would not use the links between "
                "their devices",
                "leave it out",
                "pipeline.nsys.isolate",
            )
        )
    if "shutdown" in (config.capture_range_end or ""):
        problems.append(
            Problem(
                "error",
                f"pipeline.nsys.capture_range_end={config.capture_range_end} ends one rank while the others wait for it",
                "leave it out, or use stop or repeat:N",
                "pipeline.nsys.capture_range_end",
            )
        )
    return problems
