"""The suite every stage must pass, applied to this one: ``pip install . && pytest``."""

from __future__ import annotations

from llm_perf_opt.testing.stages import StageConformance


class TestMachineNoise(StageConformance):
    """All of it; nothing is left out."""

    stage = "machine_noise"
    overrides = ("pipeline.machine_noise.samples=20", "pipeline.machine_noise.limit_ratio=0.5")
