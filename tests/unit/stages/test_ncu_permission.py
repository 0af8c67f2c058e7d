"""Counters that may not be read: said before the stage starts where the driver tells, and after it where ncu does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.process.tools import CounterPermission
from llm_perf_opt.stages.ncu import stage as ncu_stage
from llm_perf_opt.stages.ncu.diagnose import NcuEvidence, diagnose
from tests.drivers.tools import play, transcript
from tests.ncu_support import context


def test_a_container_without_the_capability_skips_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = play(
        tmp_path,
        "ncu",
        {"--version": (0, "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2024.2.0.0\n")},
    )
    monkeypatch.setenv("LLM_PERF_OPT_NCU", str(tool))
    denied = CounterPermission(
        False, "root, but without CAP_SYS_ADMIN", "start the container with --cap-add=SYS_ADMIN"
    )
    monkeypatch.setattr(ncu_stage, "counter_permission", lambda: denied)
    here = context(tmp_path / "run")
    on_gpu = replace(here, config=replace(here.config, resolved_device="cuda:0"))
    (problem,) = ncu_stage.NcuStage().check(on_gpu)
    assert (
        problem.severity == "skip"
        and "without CAP_SYS_ADMIN" in problem.message
        and "--cap-add" in problem.fix
    )


def test_what_ncu_prints_without_permission() -> None:
    text = transcript("ncu.permission-denied")
    fault = diagnose(NcuEvidence(text=text, report_written=False, ended="exit", returncode=1))
    assert fault is not None and fault.kind == "permission" and "--cap-add=SYS_ADMIN" in fault.fix
