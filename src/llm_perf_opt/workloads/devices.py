"""Data types and devices: what ``auto`` means here, and whether this machine can do what was asked."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.config.devices import device_name, may_have_accelerator, torch_version
from llm_perf_opt.config.schema import Dtype
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.accelerator import computes_natively, device_properties, offered_device

if TYPE_CHECKING:
    import torch

_PROBE_TIMEOUT_S = 120.0
# The operations a transformer spends its time in; a machine without the instructions dies in the first of them.
_PROBE = """
import torch
kind = getattr(torch, {dtype!r})
a = torch.ones(256, 256, dtype=kind)
torch.nn.functional.linear(a, a)
torch.nn.functional.conv2d(torch.ones(1, 3, 64, 64, dtype=kind), torch.ones(32, 3, 16, 16, dtype=kind), stride=16)
q = torch.ones(1, 2, 64, 64, dtype=kind)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(float((a @ a)[0, 0]))
"""


@dataclass(frozen=True, slots=True)
class ConfirmedDevice:
    """The device of a run, as torch has it."""

    name: str
    note: str | None = None
    """What a reader must know: ``auto`` is not what the machine seemed to have."""


def confirm_device(wanted: str, expected: str) -> ConfirmedDevice:
    """Ask torch for ``run.device``: what ``auto`` takes is what torch offers, and an explicit device must be among it.

    ``expected`` is what the machine's files said (``config.devices.resolve_device``). Where torch has nothing but the CPU,
    it is not asked.
    """
    if wanted == "cpu" or not may_have_accelerator():
        return ConfirmedDevice(expected)
    offered = offered_device()
    if wanted == "auto":
        if offered is not None:
            return ConfirmedDevice(device_name(offered[0], 0))
        if expected == "cpu":
            return ConfirmedDevice("cpu")
        note = f"run.device=auto means cpu: this machine has {expected}, and torch {torch_version()} cannot use it"
        return ConfirmedDevice("cpu", note)
    kind, _, index = expected.partition(":")
    if offered is not None and offered[0] == kind and int(index or 0) < offered[1]:
        return ConfirmedDevice(expected)
    have = "only the CPU" if offered is None else f"{offered[1]} {offered[0]} device(s)"
    raise ConfigError(
        f"run.device={wanted} is not available: torch {torch_version()} offers {have}",
        hint="use run.device=auto or run.device=cpu",
        key="run.device",
    )


def resolve_dtype(wanted: Dtype, device: str) -> torch.dtype:
    """Settle ``model.dtype`` for a device; refuse what would crash the process."""
    import torch

    if wanted is Dtype.auto:
        return _automatic(device)
    chosen: torch.dtype = getattr(torch, wanted.value)
    if chosen is torch.float32 or device == "meta":
        return chosen
    if device == "cpu":
        problem = cpu_problem(wanted.value)
        if problem is not None:
            raise ConfigError(
                f"model.dtype={wanted.value} does not work on this CPU: {problem}",
                hint="use model.dtype=float32, or limit oneDNN before starting: ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (or AVX2)",
                key="model.dtype",
            )
    elif not computes_natively(device, chosen):
        raise ConfigError(
            f"model.dtype={wanted.value} is not supported by {device_properties(device).name or device}",
            hint="use model.dtype=float16 or float32"
            if chosen is torch.bfloat16
            else "use model.dtype=float32",
            key="model.dtype",
        )
    return chosen


def _automatic(device: str) -> torch.dtype:
    """The smallest of bfloat16 and float16 that an accelerator computes itself, bfloat16 first; float32 on a CPU."""
    import torch

    if device == "meta":
        return torch.bfloat16
    if device == "cpu":
        return torch.float32
    halves = (torch.bfloat16, torch.float16)
    return next((dtype for dtype in halves if computes_natively(device, dtype)), torch.float32)


@functools.cache
def cpu_problem(dtype: str) -> str | None:
    """Try ``dtype`` on the CPU in a child process; return what went wrong, or ``None``.

    Some virtual machines announce matrix instructions and then trap them: the process dies of SIGILL, which
    no exception handler sees. So somebody else has to try first.
    """
    from llm_perf_opt.process.launch import run_probe

    result = run_probe([sys.executable, "-c", _PROBE.format(dtype=dtype)], timeout_s=_PROBE_TIMEOUT_S)
    if result.returncode == 0:
        return None
    if result.returncode is None:
        return f"a trial run did not end within {_PROBE_TIMEOUT_S:.0f} s"
    if result.returncode < 0 or result.returncode > 128:
        number = -result.returncode if result.returncode < 0 else result.returncode - 128
        return f"a trial run died of signal {number}{' (illegal instruction)' if number == 4 else ''}"
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"a trial run ended with exit code {result.returncode}"
