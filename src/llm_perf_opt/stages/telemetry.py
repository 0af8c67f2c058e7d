"""Clock, power, temperature, throttling and memory during measured passes.

The passes are the stage's own. Other stages measure without a sampler, whether or not this one is enabled.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.analysis.facts import TIMINGS, Facts
from llm_perf_opt.config.devices import is_rocm
from llm_perf_opt.core import layout, units
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.facts import Part, collect, timings_facts

if TYPE_CHECKING:
    from llm_perf_opt.hardware.sensors.base import Sensor
    from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, Sampler, Samples
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.engine.results import WorkloadResult


# Samples of a device as facts.


def telemetry_facts(path: Path) -> Facts:
    """Return what the device reported, peaks of memory, and what it did not report."""
    from llm_perf_opt.analysis.telemetry import absent_notes, memory_of, telemetry_of
    from llm_perf_opt.captures.documents import read_telemetry

    document = read_telemetry(path)
    telemetry = telemetry_of(document)
    energy = telemetry.energy_j
    metrics = {
        "telemetry_cost_ratio": telemetry.cost_ratio,
        "energy_per_token_j": energy.per_token,
        "energy_per_sample_j": energy.per_sample,
    }
    return Facts(
        sources={"telemetry": (path,)},
        notes=absent_notes(document, telemetry),
        metrics={name: value for name, value in metrics.items() if value is not None},
        memory=memory_of(document),
        telemetry=telemetry,
    )


NAME = "telemetry"
_SHORTEST_S, _LONGEST_S = 0.01, 60.0


@dataclass
class TelemetryConfig(StageConfig):
    """``pipeline.telemetry.*``."""

    interval_s: float = 0.1
    """Seconds between two samples (0.01 to 60); longer by itself where sampling would cost more than 0.5 % of a processor."""
    repeats: int | None = None
    """Passes over the samples. null: ``run.repeats``."""


class TelemetryStage(Stage):
    """Run the workload and sample the device."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 27
    title: ClassVar[str] = "telemetry"
    config_type: ClassVar[type[StageConfig]] = TelemetryConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's keys, the data set and memory; name a library that would report more."""
        from llm_perf_opt.workloads.memory_estimate import memory_problems
        from llm_perf_opt.workloads.setup import check_inputs

        config = context.stage_config(NAME, TelemetryConfig)
        problems = _out_of_range(config)
        if problems:
            return problems
        check_inputs(context.config)
        return [*memory_problems(context.config, NAME), *_missing_library(context.config.resolved_device)]

    def plan(self, context: StageContext) -> list[str]:
        """Return what would be run and written."""
        from llm_perf_opt.workloads.setup import planned_passes, workload_config

        config = context.stage_config(NAME, TelemetryConfig)
        workload = workload_config(context.config, repeats=config.repeats)
        folder = context.artifacts.root / NAME
        return [
            f"run {context.config.model.name} on {context.config.resolved_device}, {planned_passes(workload)}, "
            f"and look at the device every {units.seconds(config.interval_s)}",
            f"write {folder / layout.TIMINGS}",
            f"write {folder / layout.TELEMETRY}",
        ]

    def run(self, context: StageContext) -> StageResult:
        """Measure with a sampler running, and keep every sample."""
        from llm_perf_opt.workloads.engine.memory import memory_meter
        from llm_perf_opt.workloads.measure import measure
        from llm_perf_opt.workloads.outputs.config import OutputConfig, PredictionOutput, VisualizationOutput
        from llm_perf_opt.workloads.setup import workload_config

        config = context.stage_config(NAME, TelemetryConfig)
        workload = workload_config(context.config, repeats=config.repeats)
        folder = context.artifacts.out_dir(NAME)
        watch = _Watch(workload.device, config.interval_s, memory_meter(workload.device))
        silent = OutputConfig(PredictionOutput(enable=False), VisualizationOutput(enable=False))
        measured = measure(workload, silent, NAME, folder, progress=context.progress, around=watch.around)
        path = atomic_write_json(folder / layout.TELEMETRY, watch.document(measured.engine_run().result))
        measured.release(folder)
        return measured.stage_result(path)

    def facts(self, run_dir: Path) -> Facts:
        """Read samples and timings."""
        sources = (
            ("telemetry", run_dir / NAME / layout.TELEMETRY, telemetry_facts),
            (TIMINGS, run_dir / NAME / layout.TIMINGS, timings_facts),
        )
        return collect(
            NAME,
            [
                Part(what, functools.partial(read, found))
                for what, path, read in sources
                for found in own_files(run_dir, NAME, [path])
            ],
        )


def _out_of_range(config: TelemetryConfig) -> list[Problem]:
    problems = []
    if not _SHORTEST_S <= config.interval_s <= _LONGEST_S:
        key = f"pipeline.{NAME}.interval_s"
        problems.append(
            Problem("error", f"{key}={config.interval_s} is out of range", "use 0.01 to 60 seconds", key)
        )
    if config.repeats is not None and config.repeats < 1:
        key = f"pipeline.{NAME}.repeats"
        problems.append(Problem("error", f"{key}={config.repeats} is out of range", "use at least 1", key))
    return problems


def _missing_library(device: str) -> list[Problem]:
    from llm_perf_opt.hardware.sensors.sampler import FIX, PACKAGES, missing_library

    missing = missing_library(_monitored(device))
    if missing is None:
        return []
    message = f"{PACKAGES[missing]} is not installed: telemetry of {device} has memory by phase only"
    return [Problem("degraded", message, FIX[missing], f"pipeline.{NAME}.enable")]


def _monitored(device: str, uuid: str | None = None, bus_id: str | None = None) -> MonitoredDevice:
    from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice

    return MonitoredDevice(device, uuid, bus_id, rocm=is_rocm())


def _identified(device: str) -> MonitoredDevice:
    """Add the driver's names of torch's device: their GPU indices may differ."""
    if not device.startswith("cuda"):
        return _monitored(device)
    from llm_perf_opt.hardware.accelerator import device_properties

    found = device_properties(device)
    return _monitored(device, found.uuid, found.bus_id)


class _Watch:
    """The sampler and the memory meter, from before warm-up to after the last pass."""

    def __init__(self, device: str, interval_s: float, meter: Any) -> None:
        from llm_perf_opt.hardware.sensors.sampler import find_sensor
        from llm_perf_opt.workloads.engine.memory import PhaseMemory

        self._device, self._interval_s = device, interval_s
        found = find_sensor(_identified(device))
        self._sensor: Sensor | None = None if isinstance(found, str) else found
        self._absent = {"all": found} if isinstance(found, str) else {}
        self._memory: PhaseMemory | None = None if isinstance(meter, str) else PhaseMemory(meter)
        if isinstance(meter, str):
            self._absent["memory by phase"] = meter
        self._sampler: Sampler | None = None
        self._samples: Samples | None = None
        self._began: float | None = None
        self._ended = 0.0

    @contextlib.contextmanager
    def around(self, engine: Engine) -> Iterator[None]:
        """Sample while the engine warms up and measures."""
        from llm_perf_opt.hardware.sensors.sampler import Sampler

        if self._sensor is not None:
            self._sampler = Sampler(self._sensor, self._interval_s)
            self._sampler.start()
        try:
            with engine.watched(self._phase):
                yield
            self._ended = self._look()
        finally:
            if self._sampler is not None and self._sensor is not None:
                self._samples = self._sampler.stop()
                self._sensor.close()

    def document(self, result: WorkloadResult) -> dict[str, Any]:
        """Return ``telemetry.json``."""
        repeats = result.measuring.repeats if result.measuring is not None else 1
        tokens = sum(len(answer.token_ids) for answer in result.samples)
        began = self._began if self._began is not None else self._ended
        found: dict[str, Any] = {
            "schema": 1,
            "device": self._device,
            "columns": _columns(self._samples, began),
            "span_s": self._ended - began,
            "new_tokens": tokens * repeats,
            "samples": len(result.samples) * repeats,
            "absent": self._absent,
            "memory": self._memory.found if self._memory is not None else {},
            "memory_counts": self._memory.meter.counts if self._memory is not None else None,
        }
        if self._sensor is not None and self._samples is not None:
            found |= {
                "interval_s": self._samples.interval_s,
                "cost_s": self._samples.cost_s,
                "elapsed_s": self._samples.elapsed_s,
                "reader": self._sensor.reader,
                "device_name": self._sensor.device,
                "absent": {**self._absent, **self._sensor.absent},
                **asdict(self._sensor.limits),
            }
        return found

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        if self._began is None:
            self._began = self._look()
        with self._memory.watch(name) if self._memory is not None else contextlib.nullcontext():
            yield

    def _look(self) -> float:
        return self._sampler.look() if self._sampler is not None else time.perf_counter()


def _columns(samples: Samples | None, began: float) -> dict[str, list[Any]]:
    from llm_perf_opt.hardware.sensors.base import QUANTITIES

    readings = samples.readings if samples is not None else []
    times = samples.time_s if samples is not None else []
    return {
        "time_s": [at - began for at in times],
        **{name: [getattr(reading, name) for reading in readings] for name in QUANTITIES},
    }
