"""Servers that can be measured: start, health check, fixed-length requests and observation.

Support for engines that cannot be run on the project's machines (SGLang, TensorRT-LLM) comes from the sources of the
releases named in ``docs/serving-load.md``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from llm_perf_opt.core.stage import Problem
from llm_perf_opt.process.tools import find_program, has_package
from llm_perf_opt.stages.serve import transformers_steps
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig, key_of

HOST = "127.0.0.1"
PLUGIN = Path(__file__).parent / "vllm_plugin"
"""Folder with the statistics plug-in and its metadata; on ``PYTHONPATH`` of servers that the stage starts, and nowhere else."""
STEPS_VARIABLE = "LLM_PERF_OPT_VLLM_STEPS"
"""Environment variable: the file that the plug-in writes."""


_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
_ANY_SIZE = 1 << 50
"""Larger than any memory: two such servers never fit."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server."""

    checkpoint: str
    """Path or name of the model, as the server is to load it."""
    port: int
    device: str = "cpu"
    dtype: str = "auto"
    max_tokens: int = 2048
    """Longest prompt and answer together that the load has."""
    most_in_flight: int = 4
    steps_file: Path | None = None
    """Where step records go; ``None``: not wanted."""
    profile_dir: Path | None = None
    """Where the engine's profiler writes its traces; ``None``: it is not used."""
    profile_steps: int = 64
    routing_file: Path | None = None
    """Where the choices of routers go; ``None``: not wanted."""
    forward_pass_port: int | None = None
    """Port at which forward-pass metrics are to be published; ``None``: not wanted."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """One kind of server. Argument lists are built without looking at the machine."""

    name: ClassVar[EngineName]
    program: ClassVar[tuple[str, ...]] = ()
    """How the server is started where no executable is configured."""
    is_started: ClassVar[bool] = True
    """Whether the stage starts and stops it."""
    install: ClassVar[str] = ""
    """How to get it."""
    health_paths: ClassVar[tuple[str, ...]] = ("/health",)
    """Routes that answer 200 once requests are served; the first that is not 404 counts."""
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = None
    """Route that empties the prefix cache (POST)."""
    accepts_ignore_eos: ClassVar[bool] = True
    publishes_steps: ClassVar[bool] = False
    """Whether it can publish forward-pass metrics."""
    step_mark: ClassVar[str | None] = None
    """What lines of the log have that describe a step."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config

    @abstractmethod
    def arguments(self, server: ServerSettings) -> list[str]:
        """Return the arguments of the server, without those of the user."""

    def command(self, server: ServerSettings) -> list[str]:
        """Return the whole command; the user's own arguments come last and take precedence."""
        return [*self.executable(), *self.arguments(server), *self.config.args]

    def executable(self) -> list[str]:
        """Return the program: the configured one, else the engine's own."""
        return list(self.config.executable or self.program)

    def environment(self, server: ServerSettings) -> dict[str, str]:
        """Return variables of the server; the user's take precedence."""
        return dict(self.config.env)

    @property
    def cache_bytes(self) -> int:
        """Return the approximate size of the KV cache on a CPU."""
        return 1 << 30

    def request_fields(self) -> dict[str, Any]:
        """Return fields of every request: a fixed length, greedy decoding, and usage in the last chunk."""
        found: dict[str, Any] = {"temperature": 0, "stream_options": {"include_usage": True}}
        if self.accepts_ignore_eos:
            found["ignore_eos"] = True
        return found

    def model_name(self, checkpoint: str) -> str:
        """Return the model's name in requests."""
        return checkpoint

    def problems(self) -> list[Problem]:
        """Return what is missing, before anything starts."""
        first = self.executable()[0]
        found = Path(first).expanduser().is_file() if os.sep in first else find_program(first) is not None
        if found:
            return []
        message = f"the engine {self.name.value} cannot be started: {first} is not installed"
        return [
            Problem(
                "skip",
                message,
                f"{self.install}, or name its program: {key_of('executable')}=[PATH]",
                key_of("engine"),
                of_machine=True,
            )
        ]

    def version(self, log: str) -> str | None:
        """Return the version from the server's log."""
        return None

    def logged_options(self, log: str) -> dict[str, str]:
        """Return values of options that the server's log names: option → value."""
        return {}


_ALIASES = {
    "-tp": "--tensor-parallel-size", "--tp": "--tensor-parallel-size", "--tp-size": "--tensor-parallel-size",
    "-dp": "--data-parallel-size", "--dp": "--data-parallel-size", "--dp-size": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size", "--pp": "--pipeline-parallel-size", "--pp-size": "--pipeline-parallel-size",
    "--ep": "--expert-parallel-size", "--ep-size": "--expert-parallel-size", "-q": "--quantization",
}  # fmt: skip


def option_name(word: str) -> str:
    """Return the option that a word sets: ``--no-x`` and ``--x`` set the same one."""
    name = word.partition("=")[0]
    name = name.replace("_", "-") if name.startswith("--") else name
    name = _ALIASES.get(name, name)
    return f"--{name[5:]}" if name.startswith("--no-") else name


def read_options(words: Sequence[str]) -> dict[str, str]:
    """Return option → value of arguments, the last one of each; switches have ``true`` or ``false``."""
    found: dict[str, str] = {}
    for group in _option_groups(words):
        name, sign, value = group[0].partition("=")
        given = value if sign else " ".join(group[1:])
        found[option_name(name)] = given or ("false" if name.startswith("--no-") else "true")
    return found


_SAME_WORK = frozenset({
    "--async-scheduling", "--block-size", "--chunked-prefill-size", "--context-length", "--continuous-batching",
    "--cuda-graph-max-bs", "--disable-cuda-graph", "--disable-log-requests", "--disable-log-stats", "--disable-radix-cache",
    "--enable-chunked-prefill", "--enable-log-requests", "--enable-prefix-caching", "--enforce-eager",
    "--gpu-memory-utilization", "--max-batch-size", "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs",
    "--max-num-tokens", "--max-running-requests", "--max-seq-len", "--mem-fraction-static", "--num-gpu-blocks-override",
    "--schedule-policy", "--scheduling-policy", "--seed", "--uvicorn-log-level",
})  # fmt: skip
"""Options that do not change what a step of given requests computes or moves."""


def has_counted_model(config: ServeConfig, server: ServerSettings, *, own_checkpoint: bool) -> bool:
    """Return whether the server computes what static analysis counts: the configured model and type, on one device.

    Without a data type, engines other than vLLM use that of the checkpoint. It is known only of one that was written here
    (``own_checkpoint``): float32, which static analysis counts on a CPU.
    """
    known_type = server.dtype != "auto" or config.engine is EngineName.vllm
    return (
        config.engine is not EngineName.attach
        and config.model is None
        and (known_type or (own_checkpoint and server.device == "cpu"))
        and all(
            name in _SAME_WORK or (name.endswith("-parallel-size") and value == "1")
            for name, value in read_options(config.args).items()
        )
    )


def merge_options(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Return the arguments with ``changes`` in place of the same options."""
    changed = {option_name(word) for word in changes if word.startswith("-")}
    kept = [group for group in _option_groups(words) if option_name(group[0]) not in changed]
    return [*(word for group in kept for word in group), *changes]


def _option_groups(words: Sequence[str]) -> list[list[str]]:
    """Return each option with the words of its value; words before the first option are groups of their own."""
    groups: list[list[str]] = []
    for word in words:
        if groups and groups[-1][0].startswith("-") and not re.match(r"--?[A-Za-z]", word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


class TransformersEngine(Engine):
    """``transformers serve`` with continuous batching; the cache is bounded, because the default takes all memory."""

    name = EngineName.transformers
    install = "pip install 'llm-perf-opt[serve]'"
    metrics_path = None
    accepts_ignore_eos = False
    _BLOCK = 32

    def executable(self) -> list[str]:
        """Return the configured program, else the module in this environment."""
        return list(self.config.executable or [sys.executable, "-m", "transformers.cli.transformers"])

    def command(self, server: ServerSettings) -> list[str]:
        """Return the command; a server of this environment is started through the step-recording module."""
        command = super().command(server)
        if (server.steps_file or server.routing_file) and not self.config.executable:
            command[2] = transformers_steps.__name__
        return command

    def environment(self, server: ServerSettings) -> dict[str, str]:
        """Name the file of step records."""
        found = dict(self.config.env)
        if server.steps_file is not None and not self.config.executable:
            found[transformers_steps.VARIABLE] = str(server.steps_file)
        if server.routing_file is not None and not self.config.executable:
            found[transformers_steps.ROUTING_VARIABLE] = str(server.routing_file)
        return found

    def arguments(self, server: ServerSettings) -> list[str]:
        """Return the arguments: cache blocks for all requests in flight at maximum length, plus a margin."""
        per_request = -(-server.max_tokens // self._BLOCK) + 1
        blocks = max(128, per_request * min(max(server.most_in_flight, 4), 256))
        return [
            "serve", server.checkpoint,
            "--host", HOST, "--port", str(server.port),
            "--device", server.device, "--dtype", server.dtype,
            "--continuous-batching",
            "--cb-block-size", str(self._BLOCK),
            "--cb-num-blocks", str(blocks),
            "--cb-max-batch-tokens", "256",
        ]  # fmt: skip

    def request_fields(self) -> dict[str, Any]:
        """Return the fields of requests. Unknown fields are rejected with 422, so the length is fixed by a generation
        configuration without an end token.
        """
        return {"generation_config": json.dumps({"do_sample": False, "eos_token_id": -1})}

    def problems(self) -> list[Problem]:
        """Check the packages of the server, unless another environment is configured."""
        if not self.config.executable:
            missing = [
                name for name in ("fastapi", "uvicorn", "openai", "accelerate") if not has_package(name)
            ]
            if missing:
                message = f"transformers serve needs packages that are not installed: {', '.join(missing)}"
                return [Problem("skip", message, self.install, key_of("engine"), of_machine=True)]
        return super().problems()


def profiler_arguments(folder: Path, most_steps: int) -> list[str]:
    """Return vLLM's arguments: no stacks, no front end, and a limit of steps independent of the client."""
    settings = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
        "max_iterations": most_steps,
    }
    return ["--profiler-config", json.dumps(settings)]


class VllmEngine(Engine):
    """``vllm serve`` with per-request metrics and, where wanted, the statistics plug-in."""

    name = EngineName.vllm
    program = ("vllm",)
    install = "install vLLM in an environment of its own (CPU build: scripts/engines/make-vllm.sh)"
    reset_path = "/reset_prefix_cache"
    step_mark = ": Iteration("

    def arguments(self, server: ServerSettings) -> list[str]:
        """Return the arguments; on a CPU without compilation and in float32."""
        on_cpu = server.device == "cpu"
        dtype = "float32" if server.dtype == "auto" and on_cpu else server.dtype
        found = [
            "serve", server.checkpoint,
            "--host", HOST, "--port", str(server.port),
            "--dtype", dtype,
            "--max-model-len", str(max(server.max_tokens, 128)),
            "--enable-per-request-metrics",
        ]  # fmt: skip
        if on_cpu:
            found.append("--enforce-eager")
        if server.steps_file is not None:
            found.append("--enable-logging-iteration-details")
        if server.profile_dir is not None:
            found += profiler_arguments(server.profile_dir, server.profile_steps)
        return found

    def environment(self, server: ServerSettings) -> dict[str, str]:
        """Put the plug-in on the path of this server only; its presence turns vLLM's statistics on."""
        found = dict(self.config.env)
        if server.device == "cpu":
            found.setdefault(_CACHE_VARIABLE, "1")
        # Development routes, including the one that resets the prefix cache.
        found.setdefault("VLLM_SERVER_DEV_MODE", "1")
        if server.steps_file is not None:
            before = found.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLUGIN), before]))
            found[STEPS_VARIABLE] = str(server.steps_file)
        return found

    @property
    def cache_bytes(self) -> int:
        """Return the size that is set (GiB); 0 lets vLLM choose, which may take most of the memory."""
        text = self.config.env.get(_CACHE_VARIABLE, "1")
        return (int(text) << 30 if text.isdecimal() and int(text) else 0) or _ANY_SIZE

    def version(self, log: str) -> str | None:
        """Return the version of the start message."""
        found = re.search(r"vLLM (?:API server )?version v?(\d[\w.+]*)", log) or re.search(
            r"\(v(\d[\w.+]*)\) with config", log
        )
        return found[1].rstrip(".") if found else None

    def logged_options(self, log: str) -> dict[str, str]:
        """Return the limits of the scheduler and the caches, as vLLM logs them at its start."""
        patterns = {
            "--max-num-batched-tokens": r"max_num_batched_tokens=(\d{1,9})",
            "--enable-prefix-caching": r"enable_prefix_caching=(True|False)",
            "--enable-chunked-prefill": r"enable_chunked_prefill=(True|False)",
            "--enforce-eager": r"enforce_eager=(True|False)",
        }
        found = {name: re.search(pattern, log) for name, pattern in patterns.items()}
        return {name: match[1].lower() for name, match in found.items() if match is not None}


class SglangEngine(Engine):
    """``python -m sglang.launch_server``; based on its sources, not tested on the project's machines."""

    name = EngineName.sglang
    program = ("python", "-m", "sglang.launch_server")
    install = "install SGLang in an environment of its own"
    health_paths = ("/health_generate", "/health")
    publishes_steps = True
    reset_path = "/flush_cache"

    def arguments(self, server: ServerSettings) -> list[str]:
        """Return the arguments, metrics included."""
        found = [
            "--model-path", server.checkpoint,
            "--host", HOST, "--port", str(server.port),
            "--context-length", str(max(server.max_tokens, 128)),
            "--enable-metrics", "--enable-cache-report",
        ]  # fmt: skip
        if server.dtype != "auto":
            found += ["--dtype", server.dtype]
        if server.device == "cpu":
            found += ["--device", "cpu"]
        if server.forward_pass_port is not None:
            found += ["--forward-pass-metrics-port", str(server.forward_pass_port)]
        return found


class TrtllmEngine(Engine):
    """``trtllm-serve``; based on its sources, not tested on the project's machines."""

    name = EngineName.trtllm
    program = ("trtllm-serve",)
    install = "install TensorRT-LLM in an environment of its own"
    metrics_path = "/prometheus/metrics"

    def arguments(self, server: ServerSettings) -> list[str]:
        """Return the arguments of the PyTorch back end."""
        return [
            server.checkpoint,
            "--host", HOST, "--port", str(server.port),
            "--backend", "pytorch",
            "--max_seq_len", str(max(server.max_tokens, 128)),
        ]  # fmt: skip

    def model_name(self, checkpoint: str) -> str:
        """Return the last part of the path, the model name of trtllm-serve."""
        return Path(checkpoint).name


class AttachedEngine(Engine):
    """An externally started server, which is neither configured nor stopped."""

    name = EngineName.attach
    is_started = False
    health_paths = ("/health", "/v1/models")

    def arguments(self, server: ServerSettings) -> list[str]:
        """Return an empty list: it is already running."""
        return []

    def problems(self) -> list[Problem]:
        """Return no problems: reachability is checked when the stage runs."""
        return []


ENGINES: dict[EngineName, type[Engine]] = {
    kind.name: kind for kind in (TransformersEngine, VllmEngine, SglangEngine, TrtllmEngine, AttachedEngine)
}


def make_engine(config: ServeConfig) -> Engine:
    """Return the engine of a configuration."""
    return ENGINES[config.engine](config)
