"""Peaks of phases: kept per phase over all passes, from an allocator or from the kernel."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.memory import PhaseMemory, ResidentMeter, memory_meter
from tests.unit.small_workloads import workload


class Script:
    """Peaks as they are played."""

    counts: Literal["allocator", "process"] = "allocator"

    def __init__(self, *peaks: tuple[int, int]) -> None:
        self.left, self.resets = list(peaks), 0

    def reset(self) -> None:
        self.resets += 1

    def peaks(self) -> tuple[int, int]:
        return self.left.pop(0)


def test_the_highest_of_all_passes_is_kept_by_phase() -> None:
    meter = Script((5, 8), (3, 8), (4, 9), (7, 9))
    memory = PhaseMemory(meter)
    for phase in ("prefill", "decode", "prefill", "decode", "preprocess"):
        with memory.watch(phase):
            pass
    assert memory.found == {
        "prefill": {"peak_bytes": 5, "reserved_bytes": 9},
        "all": {"peak_bytes": 7, "reserved_bytes": 9},
        "decode": {"peak_bytes": 7, "reserved_bytes": 9},
    }
    assert meter.resets == 4  # preprocessing is no phase of the model


def test_the_kernels_peak_counts_from_the_base_level(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t    1000 kB\n")
    (tmp_path / "clear_refs").write_text("")
    meter = ResidentMeter(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"
    status.write_text("VmHWM:\t    1700 kB\n")
    assert meter.peaks() == (700 * 1024, 1700 * 1024)


def test_a_kernel_that_keeps_no_peak_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\n")
    (tmp_path / "clear_refs").write_text("")
    with pytest.raises(OSError, match="has no VmHWM"):
        ResidentMeter(tmp_path)


def test_this_machine_sees_a_large_tensor() -> None:
    meter = memory_meter("cpu")
    if isinstance(meter, str):
        assert "not available" in meter  # a kernel without CONFIG_PROC_PAGE_MONITOR
        return
    meter.reset()
    # Pages of its own: the allocator may have as much left from what other tests freed.
    with mmap.mmap(-1, 64 * 2**20) as held:
        held[::4096] = b"x" * len(held[::4096])
        assert meter.peaks()[0] >= 60 * 2**20


def test_the_engine_shows_every_phase_to_a_watcher_and_no_warm_up() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def watch(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"/{name}")

    engine = Engine(workload("llama"))
    sample = [Sample("x", synthetic_tokens=8)]
    with engine.watched(watch):
        engine.warm_up(sample, rounds=1)
        assert seen == []
        engine.run_sample(sample)
    assert seen == ["preprocess", "/preprocess", "prefill", "/prefill", "decode", "/decode"]
    engine.run_sample(sample)
    assert len(seen) == 6
