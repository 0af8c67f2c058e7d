"""Kernels against the best and the median measured time of the shapes they ran."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.ncu.kernels import NcuKernelFacts
from llm_perf_opt.analysis.ncu.launch import LaunchFacts
from llm_perf_opt.analysis.ncu.launch_weights import profiled_phase
from llm_perf_opt.analysis.operators.flops import has_expert_map, operand_dtype
from llm_perf_opt.analysis.operators.work import LinkedCalls, calls_by_kernel
from llm_perf_opt.analysis.roofline.expected_times import uncached_bytes
from llm_perf_opt.analysis.timeline.attribution import NONE, Attribution
from llm_perf_opt.captures.kineto.calls import OperatorCalls, Signature
from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.core import units
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.hardware.catalogue import describe_framework
from llm_perf_opt.hardware.silicon.operators import Attention, Gemm, MoeLayer, Operator
from llm_perf_opt.hardware.silicon.timing import RESTS_ON_TABLES, TableTime, Timing
from llm_perf_opt.summary import Hardware, Kernel, Section, SectionTable
from llm_perf_opt.summary.kernels import KernelTarget

# Target time of one operator from the tables: only measured or interpolated times that a model can reach.
#
# Tables repeat one call. Where its weights fit into a cache, later repetitions find them there; a model reads hundreds of
# other weights in between. A time shorter than reading the weights from memory once is therefore not a target.


FindTime = Callable[[Operator], Timing | None]
_LookUp = Callable[[Operator], "MeasuredTime | None"]
_SPLITS = (1, 2, 4, 8)
"""Ranks over which an expert may be split: shapes of a trace are those of one rank, tables name the whole."""


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Best and median of the tables that hold a shape."""

    best_s: float
    median_s: float
    how: Literal["measured", "interpolated"]
    source: str


def look_up_in(find_time: FindTime, hardware: Hardware) -> _LookUp:
    """Return a function from an operator to its measured time on this device; ``None`` outside the tables."""
    known: dict[Operator, MeasuredTime | None] = {}

    def look_up(operator: Operator) -> MeasuredTime | None:
        if operator not in known:
            known[operator] = _measured(find_time, operator, hardware)
        return known[operator]

    return look_up


def _measured(find_time: FindTime, operator: Operator, hardware: Hardware) -> MeasuredTime | None:
    floor_s = _least_seconds(operator, hardware)
    for candidate in _candidates(operator):
        timing = find_time(candidate)
        if timing is None or timing.how not in RESTS_ON_TABLES:
            continue
        answers = [answer for answer in timing.tables if answer.seconds >= floor_s]
        if answers:
            return _summed_up(answers)
    return None


def _candidates(operator: Operator) -> Iterable[Operator]:
    if not isinstance(operator, MoeLayer) or operator.tensor_parallel != 1:
        return (operator,)
    return (replace(operator, inter=operator.inter * ranks, tensor_parallel=ranks) for ranks in _SPLITS)


def _summed_up(answers: list[TableTime]) -> MeasuredTime:
    best = min(answers, key=lambda answer: answer.seconds)
    return MeasuredTime(
        best.seconds,
        statistics.median(answer.seconds for answer in answers),
        "measured" if all(answer.how == "measured" for answer in answers) else "interpolated",
        describe_framework(best.source.framework, best.source.version, best.source.kernel),
    )


def _least_seconds(operator: Operator, hardware: Hardware) -> float:
    """Return the time of computing at the peak, or of reading the weights or the cache once; 0 without limits."""
    if isinstance(operator, Gemm | Attention | MoeLayer):
        dtype = "float8" if operator.dtype == "fp8_block" else canonical_dtype(operator.dtype)
        peak = hardware.peak_flops_per_s.get(dtype)
        compute_s = operator.flops / peak.dense if peak is not None else 0.0
        bandwidth = hardware.bandwidth_bytes_per_s
        memory_s = uncached_bytes(operator) / bandwidth if bandwidth else 0.0
        return max(compute_s, memory_s)
    return 0.0


# Calls of a framework as operators of the measured tables; ``None`` unless a call is exactly one of them.
#
# A wrong shape gives a wrong target, so nothing is guessed: a mask argument may be causal or not, a batch of
# matrix products is in no table, and the operands of packed sequences do not contain their lengths.


Shape = tuple[int, ...]
_LARGEST = 10**9
"""No axis of a tensor is longer: larger sizes are damage."""
_BLOCK_SCALED = "[128, 128]"
"""Block of the scales of eight-bit experts, as a trace writes the argument."""


def measured_operator(call: Signature) -> Operator | None:
    """Return the table operator of a call."""
    reader = _READERS.get(call.name)
    return reader(call) if reader is not None else None


def _shape(call: Signature, place: int) -> Shape | None:
    """Return the shape of a tensor of at least one element; ``None`` for anything else."""
    shape = call.dims[place] if place < len(call.dims) else None
    if not isinstance(shape, list) or not shape:
        return None
    if not all(
        isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LARGEST for size in shape
    ):
        return None
    return tuple(shape)


def _product(call: Signature, first: int) -> Gemm | None:
    a, b = _shape(call, first), _shape(call, first + 1)
    if a is None or b is None or len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        return None
    return _gemm(call, first, first + 1, a[0], b[1], a[1])


def _batched(call: Signature, first: int) -> Gemm | None:
    """Return a batched product as a plain product for a batch of one; other batches are not in the tables."""
    a, b = _shape(call, first), _shape(call, first + 1)
    if a is None or b is None or len(a) != 3 or len(b) != 3 or a[0] != 1 or b[0] != 1 or a[2] != b[1]:
        return None
    return _gemm(call, first, first + 1, a[1], b[2], a[2])


def _linear(call: Signature) -> Gemm | None:
    x, weight = _shape(call, 0), _shape(call, 1)
    if x is None or weight is None or len(weight) != 2 or x[-1] != weight[1]:
        return None
    return _gemm(call, 0, 1, prod(x[:-1]), weight[0], weight[1])


def _gemm(call: Signature, first: int, second: int, m: int, n: int, k: int) -> Gemm | None:
    dtype = operand_dtype(call, first)
    if dtype is None or operand_dtype(call, second) != dtype:
        return None
    return Gemm(m, n, k, dtype)


def _attention(
    call: Signature, *, causal: int, mask: int | None = None, lengths: int | None = None, heads_axis: int = 1
) -> Attention | None:
    """``causal``, ``mask``, ``lengths``: places of these arguments."""
    q, k, v = (_shape(call, place) for place in range(3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or k != v:
        return None
    if lengths is not None and lengths < len(call.dims) and call.dims[lengths]:
        return None
    positions = 3 - heads_axis
    heads, kv_heads, new, seen = q[heads_axis], k[heads_axis], q[positions], k[positions]
    dtype = operand_dtype(call, 0)
    if dtype is None or q[0] != k[0] or q[3] != k[3] or heads % kv_heads:
        return None
    masked = mask is not None and mask < len(call.dims) and bool(call.dims[mask])
    if new == 1:
        return Attention("generation", q[0], seen, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)
    is_causal = call.concrete[causal] if causal < len(call.concrete) else ""
    if masked or new != seen or is_causal not in ("True", "False"):
        return None
    if is_causal == "True":
        return Attention("context", q[0], new, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)
    if heads != kv_heads:
        return None
    return Attention("encoder", q[0], new, heads, kv_heads, q[3], dtype=dtype, cache_dtype=dtype)


def _fused_experts(call: Signature) -> MoeLayer | None:
    """``fused_experts`` of vLLM and SGLang: positions, gate and up of all experts, down of all, weights, chosen experts."""
    x, up, down, chosen = (_shape(call, place) for place in (0, 1, 2, 4))
    if x is None or up is None or down is None or chosen is None or has_expert_map(call):
        return None
    if not (len(x) == len(chosen) == 2 and len(up) == len(down) == 3):
        return None
    hidden, inner = x[1], down[2]
    fits = up == (down[0], 2 * inner, hidden) and down[1] == hidden and chosen[0] == x[0]
    dtype = operand_dtype(call, 1)
    if not fits or dtype is None or operand_dtype(call, 2) != dtype:
        return None
    if dtype == "float8" and _BLOCK_SCALED in call.concrete:
        dtype = "fp8_block"
    return MoeLayer(x[0], hidden, inner, chosen[1], down[0], dtype=dtype)


_READERS: dict[str, Callable[[Signature], Operator | None]] = {
    "aten::mm": lambda call: _product(call, 0),
    "aten::addmm": lambda call: _product(call, 1),
    "aten::bmm": lambda call: _batched(call, 0),
    "aten::baddbmm": lambda call: _batched(call, 1),
    "aten::linear": _linear,
    "aten::_scaled_mm": lambda call: _product(call, 0),
    "_C::cutlass_scaled_mm": lambda call: _product(call, 1),
    "sgl_kernel::fp8_scaled_mm": lambda call: _product(call, 0),
    "aten::scaled_dot_product_attention": lambda call: _attention(call, mask=3, causal=5),
    "aten::_scaled_dot_product_flash_attention": lambda call: _attention(call, causal=4),
    "aten::_scaled_dot_product_efficient_attention": lambda call: _attention(call, mask=3, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": lambda call: _attention(call, mask=3, causal=6),
    "aten::_flash_attention_forward": lambda call: _attention(call, lengths=3, causal=8, heads_axis=2),
    "flash_attn::_flash_attn_forward": lambda call: _attention(call, causal=5, heads_axis=2),
    **{
        f"{engine}::{way}_fused_experts": _fused_experts
        for engine in ("vllm", "sglang")
        for way in ("inplace", "outplace")
    },
}


# Which kernel ran which operator and shape, and for how long: from a trace with recorded shapes.


@dataclass(frozen=True, slots=True)
class ShapedCalls:
    """All calls of one shape with the same longest kernel, in one phase."""

    kernel: str
    """Full name; of the kernels of a call the longest."""
    phase: str | None
    operator: Operator
    calls: int
    total_s: float
    """Time of all kernels of these calls: a product may be split, and summed by a second kernel."""


KernelPhase = tuple[str, str | None]
"""Full name of a kernel, and phase."""


class TracedKernel(NamedTuple):
    """All time of one kernel in one phase of a trace with shapes, whether its calls are in the tables or not."""

    kernel: str
    phase: str | None
    total_s: float


def traced_times(traced: Iterable[TracedKernel]) -> dict[KernelPhase, float]:
    """Add up the traces."""
    found: dict[KernelPhase, float] = {}
    for one in traced:
        key = (one.kernel, one.phase)
        found[key] = found.get(key, 0.0) + one.total_s
    return found


def shaped_calls(
    timeline: Timeline, attribution: Attribution, calls: OperatorCalls, linked: LinkedCalls
) -> list[ShapedCalls]:
    """Return every shape by kernel and phase, the longest first; calls outside all tables are left out."""
    operators = [measured_operator(signature) for signature in calls.signatures]
    wanted = np.array([operator is not None for operator in operators], bool)
    return _merged(
        timeline, attribution, operators, calls_by_kernel(timeline, attribution, calls, linked, wanted)
    )


def _merged(
    timeline: Timeline,
    attribution: Attribution,
    operators: list[Operator | None],
    found: dict[tuple[int, int, int], tuple[int, int]],
) -> list[ShapedCalls]:
    """Merge calls that differ only in properties outside the shape (strides, a bias)."""
    merged: dict[tuple[str, str | None, Operator], tuple[int, int]] = {}
    for (name, phase, signature), (count, total) in found.items():
        operator = operators[signature]
        if operator is None:
            continue
        label = attribution.phases[phase] if phase != NONE else None
        key = (demangled(timeline.names[name]), label, operator)
        calls, time = merged.get(key, (0, 0))
        merged[key] = (calls + count, time + total)
    rows = [ShapedCalls(*key, calls, total / 1e9) for key, (calls, total) in merged.items()]
    return sorted(rows, key=lambda row: (-row.total_s, row.kernel, row.phase or "", repr(row.operator)))


_MOST_SHAPES = 5
Compared = tuple[ShapedCalls, MeasuredTime]


@dataclass(slots=True)
class Coverage:
    """How much was compared, and what was not."""

    compared_s: float = 0.0
    at_stake_s: float = 0.0
    compared: list[tuple[Kernel, ShapedCalls, MeasuredTime]] = field(default_factory=list)
    """Every shape of every kernel that has a target."""
    outside: list[ShapedCalls] = field(default_factory=list)
    """Calls whose shape no table holds, the longest first."""

    @property
    def outside_s(self) -> float:
        """Their time."""
        return sum(row.total_s for row in self.outside)


def add_targets(
    kernels: Sequence[Kernel],
    shaped: Iterable[ShapedCalls],
    look_up: _LookUp,
    traced_s: Mapping[KernelPhase, float] | None = None,
) -> Coverage:
    """Set the target of every kernel whose shapes are in the tables.

    ``traced_s``: time of each kernel and phase in the traces that ``shaped`` is from. Where a kernel's time is of another
    capture of the same run (nsys in addition to the profiler, a second trace), what is at stake is carried over by the two times;
    where the trace's is not known, nothing is claimed.
    """
    coverage = Coverage()
    found: dict[tuple[str, str | None], list[Compared]] = defaultdict(list)
    for row in shaped:
        if row.total_s <= 0:
            continue  # the clock did not advance
        time = look_up(row.operator)
        if time is None:
            coverage.outside.append(row)
        else:
            found[row.kernel, row.phase].append((row, time))
    coverage.outside.sort(key=lambda row: -row.total_s)
    for kernel in kernels:
        compared = found.pop((kernel.name, kernel.phase), None)
        if compared is None:
            continue
        kernel.target = _target(kernel, compared, (traced_s or {}).get((kernel.name, kernel.phase)))
        coverage.compared += [(kernel, row, time) for row, time in compared]
        coverage.compared_s += sum(row.total_s for row, _ in compared)
        coverage.at_stake_s += kernel.target.at_stake_s or 0.0
    return coverage


def _target(kernel: Kernel, compared: list[Compared], traced_s: float | None) -> KernelTarget:
    calls = sum(row.calls for row, _ in compared)
    measured_s = sum(row.total_s for row, _ in compared)
    best_s = sum(row.calls * time.best_s for row, time in compared)
    median_s = sum(row.calls * time.median_s for row, time in compared)
    stake_s = sum(max(0.0, row.total_s - row.calls * time.best_s) for row, time in compared)
    longest = sorted(compared, key=lambda pair: (-pair[0].total_s, repr(pair[0].operator)))
    carried = kernel.total_s / traced_s if traced_s and kernel.total_s is not None else None
    same_capture = carried is not None and math.isclose(carried, 1.0, rel_tol=1e-6)
    return KernelTarget(
        best_s=best_s / calls,
        median_s=median_s / calls,
        ratio=measured_s / best_s,
        source=longest[0][1].source,
        measured_s=measured_s / calls,
        calls=calls,
        how="measured" if all(time.how == "measured" for _, time in compared) else "interpolated",
        shapes=[describe_shape(row.operator) for row, _ in longest[:_MOST_SHAPES]],
        compared_ratio=min(1.0, measured_s / kernel.total_s) if same_capture and kernel.total_s else None,
        at_stake_s=None if carried is None else stake_s * carried,
        flops=sum(row.calls * row.operator.flops for row, _ in compared) / calls,
        moved_bytes=sum(row.calls * row.operator.moved_bytes for row, _ in compared) / calls,
    )


def describe_shape(operator: Operator) -> str:
    """Describe a shape in the terms of the tables."""
    match operator:
        case Gemm():
            return f"{operator.m} × {operator.n} × {operator.k} {operator.dtype}"
        case Attention():
            heads = f"{operator.heads} heads" + (
                f" ({operator.kv_heads} of keys)" if operator.kv_heads != operator.heads else ""
            )
            return f"{operator.phase}, batch {operator.batch}, {operator.tokens} positions, {heads} of {operator.head_dim}"
        case MoeLayer():
            return (
                f"{operator.tokens} tokens, {operator.top_k} of {operator.experts} experts, "
                f"{operator.hidden} × {operator.inter} {operator.dtype}"
            )
        case _:
            return str(operator)


# Shapes of launches that Nsight Compute profiled: from the ranges torch pushes around its operators.
#
# ``torch.autograd.profiler.emit_nvtx(record_shapes=True)`` names every operator with the sizes of its inputs
# (``aten::linear, op_id = 57, sizes = [[16, 559, 1024], [2816, 1024], []]``). Kernel names contain tiles, not shapes: without
# such a range, or a trace of the same run, nothing is compared. A call may run several kernels: ``op_id`` identifies those that belong
# together.


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
    """The outermost range around a launch that names a table operator."""

    depth: int
    name: str
    sizes: Sizes
    op_id: str | None


_LOCKED = "profiled one launch at a time, with the clock locked to its base"
_SINGLE = "profiled one launch at a time"


def has_shapes(capture: NcuCapture | None) -> bool:
    """Whether any launch lies in a range with sizes."""
    return capture is not None and any(_sized(launch) is not None for launch in capture.launches)


def add_profiled_targets(
    kernels: Sequence[Kernel], facts: Sequence[NcuKernelFacts], matches: Mapping[str, str], look_up: _LookUp
) -> Coverage:
    """Add targets from profiled launches to kernels without one; time at stake is not derived from single launches."""
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
    """Return every shape by kernel and phase; the kernels of a call are summed under the longest."""
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
    written = next((kind for pattern, kind in _TYPE_WORDS if pattern.search(launch.kernel)), None)
    if found is None or written is None:
        return None
    # Ranges contain no types and flags: attention over a prompt may be causal or not, and is left out.
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


# Targets as a part of the report.


TITLE = "Kernels against the best measured"
_MOST_ROWS = 20
_MOST_OUTSIDE = 3


def target_section(
    stage: str, coverage: Coverage, origin: str, profiled: Coverage | None = None
) -> list[Section]:
    """Return the comparison shape by shape, the most time above the best first; ``origin`` names the tables."""
    rows = sorted(coverage.compared, key=lambda one: -(one[1].total_s - one[1].calls * one[2].best_s))
    rows += profiled.compared if profiled is not None else []
    if not rows and not coverage.outside:
        return []
    paragraphs = [
        "Every call of a matrix product, of attention and of routed experts whose shape is known, against the best and the "
        f"median time measured for that shape on this device ({origin}). Times are of one call, all its kernels together; "
        "measurements that only a cache makes possible are left out. Attention of the tables is a framework's whole step, writing "
        "the cache included, so that a bare kernel may be below 1: faster than any table.",
        *_describe_coverage(coverage),
    ]
    columns = ["kernel", "phase", "shape", "calls", "here", "best", "median", "× best", "measured with"]
    tables = [SectionTable(columns, [_row(*one) for one in rows[:_MOST_ROWS]])] if rows else []
    return [Section(stage, TITLE, paragraphs, tables)]


def missing_section(stage: str, reason: str) -> list[Section]:
    """Explain why there are no targets."""
    return [Section(stage, TITLE, [reason])]


def _describe_coverage(coverage: Coverage) -> list[str]:
    if not coverage.outside:
        return []
    named = [
        f"{describe_shape(row.operator)} ({units.seconds(row.total_s)})"
        for row in coverage.outside[:_MOST_OUTSIDE]
    ]
    more = len(coverage.outside) - len(named)
    return [
        f"Compared: {units.seconds(coverage.compared_s)}. Outside the tables, so without a target: "
        f"{units.seconds(coverage.outside_s)}: {'; '.join(named)}{f'; {more} more shapes' if more else ''}."
    ]


def _row(kernel: Kernel, row: ShapedCalls, time: MeasuredTime) -> list[str]:
    here_s = row.total_s / row.calls
    remark = kernel.target.remark if kernel.target is not None else None
    return [
        kernel.short_name,
        kernel.phase or units.MISSING,
        describe_shape(row.operator),
        units.count(row.calls),
        units.seconds(here_s),
        units.seconds(time.best_s),
        units.seconds(time.median_s),
        units.number(here_s / time.best_s),
        time.source + (f" ({remark})" if remark else ""),
    ]
