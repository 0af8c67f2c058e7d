"""What a remedy is, and what it receives about the run it may help.

A remedy is data and two small functions: where it applies, and which overrides it sets. It holds no code that changes a
model: what the search finds is a configuration. Further ones are found by the entry-point group ``llm_perf_opt.remedies``;
each entry is a :class:`Remedy`, a list of them, or a function that returns either.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.remedies.data import Effect, Metric
from llm_perf_opt.summary import Finding, Summary
from llm_perf_opt.workloads.memory_estimate import available_bytes

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.summary.serving import Serving

_BYTES = {"bfloat16": 2, "float16": 2}
"""Of a weight; anything else counts as four."""
Options = Sequence[Sequence[str]]
IMAGE_KEYS = ("infer.mode", "infer.base_size", "infer.image_size", "infer.crop_mode", "infer.max_tiles")
"""Other pixels are other work, unless a remedy says that it changes the quality."""
_QUALITY_KEYS = (*IMAGE_KEYS, "model.quantise_weights")
_QUALITY = ("model.cache_dtype=float8",)
"""Settings that may make answers worse, whatever a few samples say."""
Grows = Literal["alternatives", "steps"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine properties available to a remedy."""

    cpus: int
    """Processors this process may use."""
    memory_bytes: int | None = None
    """What a model can have: free now of the host's, or all of a GPU's."""
    gpus: int | None = None
    """Visible GPUs; ``None``: not known."""
    root: Path = Path("/")
    """Where its files begin; another one in tests."""

    def version(self, package: str) -> str | None:
        """Return the version of an installed package."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def first_file(self, *patterns: str) -> Path | None:
        """Return the first file that matches one of the patterns."""
        return next((path for pattern in patterns for path in sorted(self.root.glob(pattern))), None)


@dataclass(slots=True)
class Situation:
    """The run a remedy may help."""

    config: AppConfig
    metric: Metric
    machine: Machine
    findings: list[Finding] = field(default_factory=list)
    mixture: bool | None = None
    """Whether the model has routed experts; ``None``: not known."""
    phases: tuple[str, ...] | None = None
    """``None``: as the model's adapter says."""
    samples: int | None = None
    weight_bytes: int | None = None
    serving: Serving | None = None
    """A server under load, for remedies that are options of a server."""
    server_options: Mapping[str, str] = field(default_factory=dict)
    """Options of that server and their values: those given, else those its log names."""

    @property
    def on_cpu(self) -> bool:
        """Whether the processor does the work."""
        return self.config.resolved_device == "cpu"


def _applies(_: Situation) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One remedy."""

    name: str
    title: str
    """What it does, in a few words."""
    options: Callable[[Situation], Options]
    """Overrides of each setting to try, the most promising first."""
    answers: tuple[str, ...] = ()
    """Findings it answers: ``id``, or ``id:phase``."""
    effect: Effect = "nothing"
    cost: str = "none"
    """What adopting it costs: memory, a longer start, a dependency."""
    why_not: Callable[[Situation], str | None] = _applies
    """Says why it does not apply here (device, model, versions, memory); ``None``: it does."""
    grows: Grows = "alternatives"
    """``steps``: options are ordered, and the search ends where the next is no better."""
    phases: tuple[str, ...] = ()
    """Phases it makes faster; a metric that contains none of them is not tried. Empty: any."""
    advice: Callable[[Situation], str] | None = None
    """Returns what to do instead of an experiment: it changes more than this run (the machine, the number of processes, the
    engine), so it is listed with its command and never tried."""
    again_on: tuple[str, ...] = ()
    """Remedies on top of which it is tried once more, whatever it did alone: they change what it works on."""

    def answers_finding(self, finding: Finding) -> bool:
        """Return whether it addresses this finding."""
        return finding.id in self.answers or f"{finding.id}:{finding.phase}" in self.answers

    def findings(self, situation: Situation) -> tuple[Finding, ...]:
        """Return the findings that this remedy answers, the one with the largest bound first."""
        answered = [finding for finding in situation.findings if self.answers_finding(finding)]
        return tuple(sorted(answered, key=lambda f: -(f.gain_upper_s or 0.0)))


def situation_facts(summary: Summary) -> dict[str, Any]:
    """Return the model facts of a summary for remedies."""
    static = summary.static
    params = static.params if static is not None else None
    modules = static.modules if static is not None else []
    mixture = any("experts" in module.name.split(".") for module in modules) if modules else None
    phases = tuple(
        name for name in ("vision", "prefill", "decode") if getattr(summary.timings, f"{name}_s") is not None
    )
    return {
        "findings": list(summary.findings),
        "mixture": mixture,
        "phases": phases,
        "samples": summary.workload.samples,
        "weight_bytes": None
        if params is None
        else int(params.total * _BYTES.get(summary.workload.dtype or "", 4)),
    }


def key_of(override: str) -> str:
    """Return the key of ``key=value``."""
    return override.partition("=")[0].lstrip("+~")


def conflicting_key(first: Iterable[str], second: Iterable[str]) -> str | None:
    """Return a key that both set to different values; ``None``: they can be combined. Equal settings are not a conflict."""
    known = {key_of(item): item.lstrip("+") for item in first}
    return next(
        (key_of(item) for item in second if known.get(key_of(item), item.lstrip("+")) != item.lstrip("+")),
        None,
    )


def fixed(*overrides: str) -> Callable[[Situation], Options]:
    """Return an option function that always gives the same single setting."""
    return lambda _: [list(overrides)]


def no_options(_: Situation) -> Options:
    """Return no setting: for remedies that are advice."""
    return []


def this_machine() -> Machine:
    """Return the machine this process runs on, with the host's memory."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cpus=cpus, memory_bytes=available_bytes("cpu"), gpus=_visible_gpus())


def _visible_gpus() -> int | None:
    """Count the NVIDIA GPUs this process may use, without loading torch; ``None``: none is listed."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([each for each in named.split(",") if each.strip()])
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or None


def split_overrides(text: str) -> list[str]:
    """Return the overrides of ``--try 'key=value key=value'``."""
    try:
        overrides = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"--try {text}: {str(error).lower()}", hint="close the quotation: --try 'key=value key=value'"
        ) from error
    if not overrides or not all("=" in item for item in overrides):
        raise ConfigError(
            f"--try '{text}' is not a list of overrides", hint="give --try 'key=value key=value'"
        )
    return overrides


def own_remedy(text: str) -> Remedy:
    """Make a remedy of a user's own overrides: ``--try 'key=value key=value'``."""
    overrides = split_overrides(text)
    return Remedy(
        name=" ".join(overrides),
        title="your own",
        options=fixed(*overrides),
        effect="quality" if any(map(_may_be_worse, overrides)) else "rounding",
        cost="yours to judge",
    )


def _may_be_worse(item: str) -> bool:
    return key_of(item) in _QUALITY_KEYS or item.lstrip("+") in _QUALITY
