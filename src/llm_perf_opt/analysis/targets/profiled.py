"""Shapes of launches that Nsight Compute profiled: from the ranges torch pushes around its operators.

``torch.autograd.profiler.emit_nvtx(record_shapes=True)`` names every operator with the sizes of its inputs
(``aten::linear, op_id = 57, sizes = [[16, 559, 1024], [2816, 1024], []]``). Kernel names tell tiles, not shapes: without
such a range, or a trace of the same run, nothing is compared. A call may run several kernels: ``op_id`` says which belong
together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from llm_perf_opt.analysis.ncu.facts import NcuKernelFacts
from llm_perf_opt.analysis.ncu.launch import LaunchFacts
from llm_perf_opt.analysis.ncu.phases import profiled_phase
from llm_perf_opt.analysis.targets.calls import ShapedCalls
from llm_perf_opt.analysis.targets.measured import LookUp
from llm_perf_opt.analysis.targets.shapes import measured_operator
from llm_perf_opt.analysis.targets.targets import Coverage, add_targets
from llm_perf_opt.hardware.silicon.operators import Operator
from llm_perf_opt.ingest.kineto.calls import Signature
from llm_perf_opt.model.counters import NcuCapture, NcuLaunch
from llm_perf_opt.model.summary import Kernel

_SIZED = re.compile(
    r"^(?P<name>[\w:]+)(?:, seq = \d+)?(?:, op_id = (?P<op_id>\d+))?, sizes = (?P<sizes>\[\[.*?\]\])(?:,|$)"
)
_TYPE_WORDS = (
    (re.compile(r"e4m3|e5m2|fp8", re.IGNORECASE), "c10::Float8_e4m3fn"),
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), "c10::BFloat16"),
    (re.compile(r"(?<![a-z0-9])f16|fp16|half|hgemm|h\d+gemm|_h1688|_f16", re.IGNORECASE), "c10::Half"),
)
"""What a kernel's name says of its inputs, eight bits before the sixteen it writes."""
Sizes = list[list[int]]


class _Range(NamedTuple):
    """The outermost range around a launch that is an operator of the tables."""

    depth: int
    name: str
    sizes: Sizes
    op_id: str | None


_LOCKED = "profiled one launch at a time, with the clock locked to its base"
_SINGLE = "profiled one launch at a time"


def has_shapes(capture: NcuCapture | None) -> bool:
    """Whether any launch lies in a range that tells sizes."""
    return capture is not None and any(_sized(launch) is not None for launch in capture.launches)


def add_profiled_targets(
    kernels: Sequence[Kernel], facts: Sequence[NcuKernelFacts], matches: Mapping[str, str], look_up: LookUp
) -> Coverage:
    """Give kernels without a target one from their profiled launches; time at stake is not claimed from single launches."""
    waiting = [kernel for kernel in kernels if kernel.target is None]
    coverage = add_targets(waiting, _shaped(facts, matches, waiting), look_up)
    settings = (part.launch.settings for each in facts for part in each.parts)
    locked = {one.clock_control for one in settings if one is not None}
    for kernel in waiting:
        if kernel.target is not None:
            kernel.target.at_stake_s = None
            kernel.target.remark = _LOCKED if locked == {"base"} else _SINGLE
    return coverage


def _shaped(
    facts: Iterable[NcuKernelFacts], matches: Mapping[str, str], kernels: Sequence[Kernel]
) -> list[ShapedCalls]:
    """Return every shape by kernel and phase; the kernels of a call count together, for the longest of them."""
    phases = {kernel.phase for kernel in kernels}
    found: dict[tuple[str, str | None, Operator], tuple[int, float]] = {}
    for call in _calls(part for each in facts for part in each.parts):
        seconds = [part.get("duration_s") or 0.0 for part in call]
        launch = call[seconds.index(max(seconds))].launch
        operator = profiled_operator(launch)
        if operator is None or not all(seconds):
            continue
        phase = profiled_phase(launch)
        key = (matches.get(launch.kernel, launch.kernel), phase if phase in phases else None, operator)
        calls, total = found.get(key, (0, 0.0))
        found[key] = (calls + 1, total + sum(seconds))
    return [ShapedCalls(*key, calls, total) for key, (calls, total) in found.items()]


def _calls(parts: Iterable[LaunchFacts]) -> list[list[LaunchFacts]]:
    """Return the launches of each call of an operator.

    Without an ``op_id``, launches that follow one another in ranges of one text may be one call or several: they are left
    out. So are captures of one kernel each: the other kernels of a call are not in them.
    """
    calls: dict[tuple[object, ...], list[LaunchFacts]] = {}
    numbered: set[tuple[object, ...]] = set()
    before, run = None, 0
    for part in sorted(parts, key=_launch_order):
        launch = part.launch
        around = _sized(launch) if launch.nsys_name_md5 is None else None
        place = None if around is None else (*_file_of(launch), *launch.ranges[: around.depth + 1])
        if around is not None and place is not None:
            run += place != before
            key = place if around.op_id is not None else (*place, run)
            calls.setdefault(key, []).append(part)
            if around.op_id is not None:
                numbered.add(key)
        before = place
    return [call for key, call in calls.items() if key in numbered or len(call) == 1]


def _file_of(launch: NcuLaunch) -> tuple[object, ...]:
    return launch.sources, launch.process_id


def _launch_order(part: LaunchFacts) -> tuple[object, ...]:
    number = part.launch.launch_id
    return *_file_of(part.launch), int(number) if number.isdecimal() else -1


def profiled_operator(launch: NcuLaunch) -> Operator | None:
    """Return the operator around a launch: the outermost range that is one, its type from the kernel's name."""
    found = _sized(launch)
    written = next((kind for words, kind in _TYPE_WORDS if words.search(launch.kernel)), None)
    if found is None or written is None:
        return None
    # Ranges tell no types and no flags: attention over a prompt may be causal or not, and is left out.
    types = tuple(written if size else "" for size in found.sizes)
    return measured_operator(Signature(found.name, tuple(found.sizes), types, ()))


def _sized(launch: NcuLaunch) -> _Range | None:
    for depth, text in enumerate(launch.ranges):
        match = _SIZED.match(text)
        if match is None:
            continue
        try:
            sizes = json.loads(match["sizes"])
        except ValueError:
            continue
        if (
            measured_operator(Signature(match["name"], tuple(sizes), ("c10::Half",) * len(sizes), ()))
            is not None
        ):
            return _Range(depth, match["name"], sizes, match["op_id"])
    return None
