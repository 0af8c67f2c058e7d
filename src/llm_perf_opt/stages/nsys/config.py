"""``pipeline.nsys.*``: keys of the Nsight Systems stage and what they may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.stage import StageConfig
from llm_perf_opt.stages.nsys.command import check_capture

_GRAPH_TRACES = (
    "node",
    "graph",
    *(f"{kind}:{origin}" for kind in ("node", "graph") for origin in ("host-only", "host-and-device")),
)


@dataclass
class NsysConfig(StageConfig):
    """``pipeline.nsys.*``: the Nsight Systems capture."""

    description: str = ""
    """What the preset is for."""
    gating_nvtx: bool = True
    """false: capture the whole run and pass no NVTX flag, regardless of capture_range."""
    trace: Any = "cuda,nvtx,osrt,cudnn,cublas"
    """APIs to trace: a comma-separated string or a list."""
    sample: str = "none"
    """CPU sampling: none, process-tree or system-wide. Passed even as none (left out, nsys samples)."""
    cpuctxsw: str = "none"
    """Context-switch trace: none, process-tree or system-wide. nsys 2022.4 hangs with it."""
    cuda_graph_trace: str | None = "node"
    """Detail of CUDA graphs, where this nsys can choose: node (every kernel, some overhead) or graph (one block each); null:
    nsys' own default."""
    capture_range: str = "none"
    """When to capture: none (whole run), nvtx (a range), cudaProfilerApi (the measured passes of the built-in workload on
    CUDA; your own program calls it itself), hotkey (a key pressed in a window of your own program)."""
    nvtx_capture: Any = None
    """Exact range name (``decode``, ``decode@domain``), or a list: one capture each. Needed with nvtx."""
    capture_range_end: str | None = None
    """none, stop, stop-shutdown, repeat[:N], repeat-shutdown:N. null: not passed; nsys ends the program then."""
    nvtx_domain_include: list[str] = field(default_factory=list)
    """Only these NVTX domains (``default``: the unnamed one)."""
    nvtx_domain_exclude: list[str] = field(default_factory=list)
    """All but these NVTX domains."""
    extra_args: list[str] = field(default_factory=list)
    """Further options of ``nsys profile``, as they are."""
    executable: str | None = None
    """Which nsys; null: LLM_PERF_OPT_NSYS, PATH, then the usual places."""
    isolate: bool | None = None
    """Let nsys see only the processes of its own capture, because it stores the environment of all it sees. null: where
    the machine allows it and nothing is sampled system-wide; true: or not at all."""
    timeout_s: float | None = None
    """Time limit of one capture; null: pipeline.workload.timeout_s."""
    max_bytes: int | None = 20 << 30
    """Size limit of one capture on disk; null: none."""
    force_overwrite: bool = True
    """Replace an earlier capture in the same run directory; false: refuse to start."""
    keep_qdstrm: bool = True
    """Keep the raw stream when the importer failed, to import it elsewhere."""


def labels_of(config: NsysConfig) -> list[str]:
    """Return the ranges to capture, each once."""
    value = config.nvtx_capture
    if value is None or value == "":
        return []
    labels = [value] if isinstance(value, str) else list(value)
    return list(dict.fromkeys(str(label) for label in labels))


def trace_of(config: NsysConfig) -> str:
    """Return what to trace as nsys takes it."""
    parts = config.trace.split(",") if isinstance(config.trace, str) else [str(part) for part in config.trace]
    return ",".join(part.strip() for part in parts if part.strip()) or "none"


def config_errors(config: NsysConfig) -> list[ConfigError]:
    """Return invalid values and combinations; every message names the key."""
    errors = _type_errors(config)
    if errors:
        return errors
    try:
        check_capture(
            config.capture_range, labels_of(config), config.capture_range_end, gating=config.gating_nvtx
        )
    except ConfigError as error:
        errors.append(error)
    if config.cuda_graph_trace not in (None, *_GRAPH_TRACES):
        errors.append(
            ConfigError(
                f"pipeline.nsys.cuda_graph_trace={config.cuda_graph_trace} is not something nsys takes",
                hint=f"one of: {', '.join(_GRAPH_TRACES)}, or null",
                key="pipeline.nsys.cuda_graph_trace",
            )
        )
    if config.nvtx_domain_include and config.nvtx_domain_exclude:
        errors.append(
            ConfigError(
                "pipeline.nsys.nvtx_domain_include and nvtx_domain_exclude exclude each other",
                hint="give only one of them",
                key="pipeline.nsys.nvtx_domain_include",
            )
        )
    for key in ("timeout_s", "max_bytes"):
        value = getattr(config, key)
        if value is not None and value <= 0:
            full = f"pipeline.nsys.{key}"
            errors.append(
                ConfigError(f"{full}={value} is not positive", hint="use null for the default", key=full)
            )
    return errors


def _type_errors(config: NsysConfig) -> list[ConfigError]:
    """Check keys that take a string or a list of strings, which the schema cannot express."""
    errors = []
    for key in ("trace", "nvtx_capture"):
        value = getattr(config, key)
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str) for word in values) and not (
            key == "nvtx_capture" and value is None
        ):
            full = f"pipeline.nsys.{key}"
            errors.append(
                ConfigError(f"{full}={value} is not a name", hint="give a name or a list", key=full)
            )
    return errors
