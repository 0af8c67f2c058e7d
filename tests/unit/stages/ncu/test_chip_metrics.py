"""Counters by chip: what a GPU lacks and others have is left out and said; a name nobody has degrades the stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.files import packaged_yaml
from llm_perf_opt.stages.ncu.command import accept_metrics
from llm_perf_opt.stages.ncu.probe import known_metrics, probe_ncu
from tests.ncu_support import TOOLS

AMPERE = {"gpu__time_duration", "sm__ops_path_tensor_src_fp16_dst_fp32"}
HOPPER = {"gpu__time_duration", "sm__ops_path_tensor_src_fp16"}


def test_a_counter_of_another_chip_is_a_note() -> None:
    wanted = [
        "gpu__time_duration.sum",
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
        "sm__ops_path_tensor_src_fp16.sum",
    ]
    found = accept_metrics(wanted, HOPPER, lambda: AMPERE | HOPPER)
    assert found.names == ["gpu__time_duration.sum", "sm__ops_path_tensor_src_fp16.sum"]
    assert found.warnings == [] and "sm__ops_path_tensor_src_fp16_dst_fp32.sum" in found.notes[0]


def test_a_counter_of_no_chip_is_a_warning() -> None:
    found = accept_metrics(["gpu__tyme_duration.sum"], HOPPER, lambda: AMPERE | HOPPER)
    assert found.names == [] and "gpu__tyme_duration" in found.warnings[0] and found.notes == []


def test_other_chips_are_queried_only_where_something_is_missing() -> None:
    requested: list[bool] = []

    def others() -> set[str]:
        requested.append(True)
        return set()

    accept_metrics(["gpu__time_duration.sum"], HOPPER, others)
    accept_metrics(["anything"], None, others)
    assert requested == []


@pytest.mark.needs("ncu")
@pytest.mark.parametrize("tool", TOOLS or [None], ids=str)
@pytest.mark.parametrize("chip", ["ga100", "ad102", "gh100"])
def test_the_default_preset_is_not_degraded_by_a_chip(tool: Path, chip: str) -> None:
    capabilities = probe_ncu(tool)
    every = known_metrics(tool, capabilities.default_chips)
    if "sm__ops_path_tensor_src_bf16_dst_fp32" not in every:
        # Before 2024 no chip has them: then something is lost, and the stage says so.
        assert capabilities.version < (2024,)
        return
    wanted = packaged_yaml("llm_perf_opt.conf", "profiling/ncu/ncu.default.yaml")["ncu_cli"]["metrics"]
    found = accept_metrics(wanted, known_metrics(tool, (chip,)), lambda: every)
    assert found.warnings == []
    kept = [name for name in found.names if "tensor_src_fp16" in name]
    assert kept, "tensor operations in float16 are counted on every chip, by the chip's own name"
    assert ("sm__ops_path_tensor_src_fp16.sum" in kept) is (chip == "gh100")
