"""The profiler API around what is measured: only when asked for, and stopped whatever happens."""

from __future__ import annotations

import pytest

from llm_perf_opt.workloads.engine.nvtx import PROFILER_RANGE, profiler_range


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import torch

    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    return calls


def test_nothing_without_a_request(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILER_RANGE, raising=False)
    with profiler_range():
        called.append("work")
    assert called == ["work"]


def test_start_work_wait_stop(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILER_RANGE, "1")
    with profiler_range():
        called.append("work")
    assert called == ["start", "work", "wait", "stop"]
    called.clear()
    with pytest.raises(ValueError), profiler_range():
        raise ValueError
    assert called == ["start", "stop"]
