"""Tools of one vendor and devices of the others."""

from __future__ import annotations

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.stages import workload
from tests.text_facts import mentions


@pytest.mark.parametrize(
    ("device", "rocm", "expected"),
    [
        ("cuda:0", True, ("AMD GPUs", "rocprofv3")),
        ("xpu:0", False, ("Intel GPUs", "unitrace")),
        ("mps", False, ("Apple GPUs", "Instruments")),
        ("npu:1", False, ("npu", "vendor's")),
    ],
)
@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_tool_that_does_not_exist_for_a_device_is_skipped_with_the_reason(
    tool: str, device: str, rocm: bool, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "is_rocm", lambda: rocm)
    config = compose_config([])
    config.resolved_device = device
    found = workload.unsupported_device(tool, config)
    assert found is not None and found.severity == "skip"
    assert found.key == "run.device"
    assert mentions(found.message, tool, device, expected[0]) and mentions(found.fix, expected[1])


@pytest.mark.parametrize("device", ["cpu", "cuda:3"])
def test_nvidias_devices_and_the_host_are_left_to_the_tool(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "is_rocm", lambda: False)
    config = compose_config([])
    config.resolved_device = device
    assert workload.unsupported_device("nsys", config) is None


def test_the_users_own_program_chooses_its_device_itself() -> None:
    config = compose_config(["pipeline.workload.command=[true]"])
    config.resolved_device = "xpu:0"
    assert workload.unsupported_device("nsys", config) is None
