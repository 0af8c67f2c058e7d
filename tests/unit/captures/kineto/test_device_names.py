"""Devices are named by whichever key of a trace tells, and not where keys differ."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.captures.kineto.timeline import device_names

H100, MI300 = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"

UNNAMED = {"id": 0, "name": "", "computeMajor": 9, "computeMinor": 4, "warpSize": 64}
"""ROCm may leave the name empty."""


def listed(*entries: tuple[int, str]) -> dict[str, Any]:
    return {"deviceProperties": [{"id": number, "name": name} for number, name in entries]}


@pytest.mark.parametrize(
    ("metadata", "used", "names"),
    [
        (listed((0, H100)), {0}, {0: H100}),
        (listed((0, MI300)), {2}, {2: MI300}),  # ROCm counts processors as well
        (listed((0, MI300), (1, MI300)), {9, 1}, {1: MI300, 9: MI300}),
        (listed((0, H100), (1, MI300)), {1, 2}, {1: MI300}),  # which of the two is 2?
        (listed((0, "")), {0}, {}),
        (
            {"deviceProperties": [{**UNNAMED, "numSms": 304, "totalGlobalMem": 206_141_652_992}]},
            {2},
            {2: MI300},
        ),
        ({"deviceProperties": [{**UNNAMED, "numSms": 104, "totalGlobalMem": 68_702_699_520}]}, {0}, {}),
        ({"deviceProperties": [{**UNNAMED, "numSms": "304", "totalGlobalMem": None}]}, {0}, {}),
        (listed((0, H100)), {-1}, {}),
        ({}, {0}, {}),
        ({"deviceProperties": "none"}, {0}, {}),
        ({"deviceProperties": [{"id": 0, "deviceName": H100}]}, {0}, {0: H100}),
        ({"gpu_name": H100}, {0, 1}, {0: H100, 1: H100}),
        ({"metadata": {"system": {"gpu_models": [MI300, MI300]}}}, {2}, {2: MI300}),
        ({"metadata": {"device_name": H100, "gpu_name": MI300}}, {0}, {}),
        ({"metadata": {"device": "auto", "device_type": "cuda"}}, {0}, {}),
        ({"gpu_name": "  "}, {0}, {}),
        ({**listed((0, H100)), "gpu_name": MI300}, {0}, {0: H100}),
    ],
)
def test_names(metadata: dict[str, Any], used: set[int], names: dict[int, str]) -> None:
    assert device_names(metadata, used) == names
