"""The kind of program in a capture, the amount of evidence the capture holds, and advice that fits both.

Keys of our own configuration help only where we ran the model ourselves. For captures taken elsewhere the advice is in
the terms of the engine, or general.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.core import units
from llm_perf_opt.core.phases import DECODE, WHOLE
from llm_perf_opt.summary import Finding, Hardware, Kernel, Summary
from llm_perf_opt.summary.kernels import KernelWork

Engine = Literal["vLLM", "SGLang"]
_ENGINES: tuple[tuple[Engine, re.Pattern[str]], ...] = (
    ("SGLang", re.compile(r"\bsgl_kernel::|\bsglang::|\bsgl_|sglang/")),
    ("vLLM", re.compile(r"\bvllm::|\b_vllm_|\b_C_cache_ops::|\b_moe_C::|vllm/")),
)
_TRAINING = re.compile(
    r"autograd::engine|Optimizer\.(?:step|zero_grad)|multi_tensor_apply|[a-z0-9]Backward\d*\b|_backward(?:_|\b)|\bwgrad|dgrad|FusedAdam"
    r"|_fused_adam|AccumulateGrad",
    re.IGNORECASE,
)
_LEAST_TRAINING = 3
"""Different names; one may be an accident (a kernel that serves both directions)."""
_COMPILED = re.compile(
    r"^triton_(?:poi|red|per|tem|for)_fused|Torch-Compiled Region|CompiledFxGraph|^CompiledFunction"
)
_CACHE = re.compile(r"reshape_and_cache|paged|kv_?cache|concat_and_cache|store_kvcache", re.IGNORECASE)
_OWN_KEY = re.compile(r"\b(?:model|infer|run|dataset|pipeline)\.[a-z_]+")


@dataclass(frozen=True, slots=True)
class Program:
    """The kind of program in a capture, detected from the names in it."""

    own: bool
    """We ran the model: our configuration keys apply."""
    engine: Engine | None
    training: bool
    compiled: bool
    graphs: bool
    """Kernels run behind graph launches."""
    caches_keys: bool
    """It decodes with a cache of keys and values."""


def program_of(summary: Summary) -> Program:
    """Detect the program from the names of kernels and operators, and at what was counted."""
    names = [kernel.name for kernel in summary.kernels] + [operator.name for operator in summary.operators]
    engine = next((name for name, pattern in _ENGINES if any(pattern.search(one) for one in names)), None)
    families = {kernel.family for kernel in summary.kernels}
    return Program(
        own="ingest" not in summary.run.command[1:2],
        engine=engine,
        training=len({one for one in names if _TRAINING.search(one)}) >= _LEAST_TRAINING,
        compiled=any(_COMPILED.search(one) for one in names),
        graphs=bool(summary.metrics.get("graph_kernel_time_ratio")) or "graph" in families,
        caches_keys=DECODE in summary.budget
        or engine is not None
        or "kv_cache" in families
        or any(_CACHE.search(one) for one in names),
    )


# How much a capture holds. An idle share is a mean over gaps, roughly one per launch. The standard deviation of gaps is
# about their mean, so the relative error of a mean of n gaps is 1/√n: 22 % for 20, 7 % for 200. One step of a small
# model has a few hundred launches and takes a few milliseconds; anything less is not a complete step.


LEAST_LAUNCHES = 20
LEAST_SPAN_S = 1e-3
_SURE_LAUNCHES = 200
_SURE_SPAN_S = 10e-3
_KERNELS_PER_GRAPH = 50
"""A graph that was captured as one operation stands for many kernels."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How much device work a capture holds, over all ranks."""

    launches: float
    span_s: float

    @property
    def is_enough(self) -> bool:
        """Whether the capture is large enough for shares of its time."""
        return self.launches >= LEAST_LAUNCHES and self.span_s >= LEAST_SPAN_S

    @property
    def is_sure(self) -> bool:
        """Whether its shares may be reported as certain."""
        return self.launches >= _SURE_LAUNCHES and self.span_s >= _SURE_SPAN_S

    def describe(self) -> str:
        """Describe the amount of evidence."""
        return f"{units.count(round(self.launches))} kernel launches in {units.seconds(self.span_s)}"


def evidence_of(summary: Summary) -> Evidence | None:
    """Return how much the capture holds; ``None`` without a timeline, or where the time was measured without it."""
    whole = summary.budget.get(WHOLE)
    launches = summary.metrics.get("kernel_launches")
    if whole is None or launches is None or whole.profiled_span_s is not None:
        return None
    if any(budget.profiled_span_s is not None for budget in summary.budget.values()):
        return None
    graphs = sum(kernel.launches or 0 for kernel in summary.kernels if kernel.family == "graph")
    return Evidence(launches + graphs * (_KERNELS_PER_GRAPH - 1), whole.span_s)


_ABOUT_KERNELS = frozenset(("slow-kernels",))
"""Findings about a kernel by itself (the limit of its own shape): one launch is enough for them."""
_WORTH_SAYING = 0.01
"""Share of the captured time below which a finding is not worth a line."""


def keep_supported(findings: list[Finding], summary: Summary) -> list[Finding]:
    """Leave out what the capture is too small for, and what is too small to matter; limit the confidence of the rest."""
    evidence = evidence_of(summary)
    if evidence is None:
        return findings
    if not evidence.is_enough:
        return [
            replace(one, gain_upper_s=None, confidence="low", evidence=[*one.evidence, evidence.describe()])
            for one in findings
            if one.id in _ABOUT_KERNELS
        ]
    kept = [
        one
        for one in findings
        if (seconds := one.gain_upper_s if one.gain_upper_s is not None else one.time_s) is None
        or seconds >= _WORTH_SAYING * evidence.span_s
    ]
    if evidence.is_sure:
        return kept
    return [replace(one, confidence="medium") if one.confidence == "high" else one for one in kept]


_SPLIT_LOSS = frozenset(("exposed-communication", "straggler"))
"""Findings that share one part of the budget; ``time_s`` is the whole part."""
_UNCERTAIN_GAIN = frozenset(("full-precision-kernels",))
"""Their bound is a ratio of peaks that few shapes reach, and the change alters the results."""


def rank_findings(found: Iterable[Finding]) -> list[Finding]:
    """Order findings by their gain, those without one by the time they are about; ties by id and phase.

    Of findings that split one loss, the largest is placed by the whole of it, so that the order agrees with the budget. Time without a
    known cause (low confidence) and bounds that are rarely reached count half.
    """
    listed = list(found)
    leaders: dict[str | None, Finding] = {}
    for one in listed:
        if one.id in _SPLIT_LOSS and one.time_s is not None:
            before = leaders.get(one.phase)
            if before is None or (one.gain_upper_s or 0.0) > (before.gain_upper_s or 0.0):
                leaders[one.phase] = one
    leading = {id(one) for one in leaders.values()}
    return sorted(listed, key=lambda one: _rank_key(one, leads=id(one) in leading))


def _rank_key(finding: Finding, *, leads: bool) -> tuple[float, float, str, str]:
    seconds = finding.gain_upper_s if finding.gain_upper_s is not None else finding.time_s
    place = finding.time_s if leads else seconds
    weight = 0.5 if finding.confidence == "low" or finding.id in _UNCERTAIN_GAIN else 1.0
    return (-(place or 0.0) * weight, -(seconds or 0.0), finding.id, finding.phase or "")


# Compare a shape with the limits of the device.


@dataclass(frozen=True, slots=True)
class ShapeLimit:
    """The limit that a shape reaches first, and how near its kernel comes to it."""

    side: Literal["compute", "memory"]
    reached_ratio: float
    """Least time by the limits ÷ measured time."""


def shape_limit(work: KernelWork, kernel: Kernel, hardware: Hardware) -> ShapeLimit | None:
    """Return the roofline of one shape; ``None`` where a limit of the device or the operands are unknown."""
    dtype = "tf32" if work.dtype == "float32" and "tf32" in kernel.name.casefold() else work.dtype
    peak = hardware.peak_flops_per_s.get(dtype or "")
    bandwidth = hardware.bandwidth_bytes_per_s
    if peak is None or not bandwidth or work.moved_bytes is None or not work.calls or work.total_s <= 0:
        return None
    compute_s, memory_s = work.flops / peak.dense, work.moved_bytes / bandwidth
    reached = max(compute_s, memory_s) * work.calls / work.total_s
    return ShapeLimit("compute" if compute_s >= memory_s else "memory", reached)


_MOVES_DATA = frozenset(
    (
        "elementwise",
        "reduction",
        "reduce",
        "norm",
        "softmax",
        "activation",
        "rope",
        "copy",
        "cast",
        "transpose",
        "kv_cache",
        "index",
    )
)
"""Families that read and write every element once or a few times: memory limits them."""


def seconds_by_limit(summary: Summary, phase: str) -> tuple[float, dict[str, float]]:
    """Return the kernel time of a phase and the parts limited by compute and by memory, by shapes and families."""
    total, found = 0.0, {"compute": 0.0, "memory": 0.0}
    for kernel in summary.kernels:
        if phase not in (WHOLE, kernel.phase) or kernel.family == "communication":
            continue
        total += kernel.total_s or 0.0
        if kernel.family in _MOVES_DATA:
            found["memory"] += kernel.total_s or 0.0
        for work in kernel.work:
            limit = shape_limit(work, kernel, summary.hardware)
            if limit is not None:
                found[limit.side] += work.total_s
    return total, found


def describe_families(summary: Summary, phase: str, most: int = 3) -> str:
    """``gemm 85.0 %, attention 9.10 %, norm 2.00 %`` of the kernel time."""
    seconds: dict[str, float] = {}
    for kernel in summary.kernels:
        if phase in (WHOLE, kernel.phase):
            seconds[kernel.family] = seconds.get(kernel.family, 0.0) + (kernel.total_s or 0.0)
    total = sum(seconds.values())
    largest = sorted(seconds, key=lambda family: (-seconds[family], family))[:most]
    return (
        ", ".join(f"{family} {units.percent(seconds[family] / total)}" for family in largest) if total else ""
    )


# Advice for captures taken elsewhere, by finding.


_GRAPHED = (
    "The step is already {how}: look at what is launched outside of it (sampling, scheduling, copies, collectives), "
    "widen the captured region, or give each step more work (a larger batch)."
)
_LAUNCH: dict[Engine | None, str] = {
    "vLLM": "Let vLLM replay CUDA graphs: no --enforce-eager, capture sizes that cover the batches (cudagraph_capture_sizes), "
    "more concurrent requests (--max-num-seqs).",
    "SGLang": "Let SGLang replay CUDA graphs: no --disable-cuda-graph, and --cuda-graph-max-bs at least the running batch; more "
    "concurrent requests (--max-running-requests).",
    None: "Replay the repeated step as a CUDA graph (torch.cuda.graph) or compile it (torch.compile, mode='reduce-overhead'); "
    "fuse small kernels; a larger batch shares the launches.",
}
_LAUNCH_TRAINING = (
    "Compile the step (torch.compile) or replay it as a CUDA graph (torch.cuda.make_graphed_callables); use a fused optimizer "
    "(fused=True); a larger micro-batch shares the launches."
)
_GENERAL: dict[str, str] = {
    "copies": "Pin host memory, copy asynchronously (non_blocking=True), prepare the next input while the device computes; keep on "
    "the device what is used again.",
    "allocation": "Let the caching allocator keep its memory: do not call empty_cache in the loop, allocate buffers once, use "
    "expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) when sizes vary.",
    "host-idle": "Move that work off the thread that feeds the device, or do it ahead, while the device is busy.",
    "copy-kernels": "Look for .to(dtype), .contiguous(), cat and transposes between kernels; keep one data type and one layout.",
    "full-precision": "Run the model in bfloat16 (or autocast) and compare the outputs; bytes halve and matrix units run at their "
    "half-precision rate.",
    "misaligned-gemm": "Pad the dimension to a multiple of 8 elements of 2 bytes (4 of 4 bytes): vocabulary, hidden size, sequence "
    "length, or the start of a slice.",
    "underfilled-grids": "Give each launch more work: a larger batch, grouped or batched matrix products for experts, split-K.",
    "unfused-elementwise": "Compile the model (torch.compile), or use fused norm, rotary and activation kernels.",
    "eager-attention": "Use a fused attention kernel: torch.nn.functional.scaled_dot_product_attention, or FlashAttention where it is "
    "installed.",
    "old-flash-attention": "Try a newer attention kernel: FlashAttention 3 (Hopper), cuDNN attention "
    "(sdpa_kernel(SDPBackend.CUDNN_ATTENTION)), or the engine's attention backend; compare the outputs.",
    "kv-cache-growth": "Shorten the prompt, keep keys and values in fewer bits if accuracy allows, use grouped heads or a "
    "sliding window where the model has them.",
    "noisy-timings": "Repeat the measurement more often, fix the clocks, and keep the machine to yourself.",
    "warm-up-pollution": "Warm up for longer, so that caches, autotuning and lazy initialisation are over before measuring.",
    "more-work-than-needed": "Use an implementation that sends tokens to their chosen experts only and keeps latent attention "
    "compressed (vLLM and SGLang do).",
    "padding-waste": "Batch requests of similar length, or use a runtime that packs sequences.",
    "vision-dominated-ttft": "Compile the image encoder and batch the tiles of several pages; if accuracy allows, use fewer "
    "pixels or fewer tiles.",
}


def fit_advice(finding: Finding, program: Program, summary: Summary) -> Finding:
    """Give a finding of a capture taken elsewhere the advice that fits it; findings of our own runs are unchanged."""
    advice = finding.advice
    if finding.id == "copies":
        advice = copy_advice(summary) or advice
    if program.own:
        return finding if advice == finding.advice else replace(finding, advice=advice)
    if finding.id == "launch-bound":
        advice = launch_advice(program)
    elif finding.id == "unfused-elementwise":
        advice = _fusing_advice(program)
    elif _OWN_KEY.search(advice):
        advice = _GENERAL.get(finding.id) or _without_keys(advice)
    return replace(finding, advice=advice)


def launch_advice(program: Program) -> str:
    """Return what to do about launching in the terms of the program, given what it already does."""
    done = [
        word
        for word, is_so in (("replayed as graphs", program.graphs), ("compiled", program.compiled))
        if is_so
    ]
    if program.graphs:
        return _GRAPHED.format(how=" and ".join(done))
    if program.compiled:
        return (
            "The model is compiled; replay it as a CUDA graph too (torch.compile mode='reduce-overhead'), look for graph breaks, and "
            "give each step more work (a larger batch)."
        )
    return _LAUNCH_TRAINING if program.training else _LAUNCH[program.engine]


def _fusing_advice(program: Program) -> str:
    if program.compiled:
        return (
            "The model is compiled: look at the chains outside of compiled regions (graph breaks, custom operators), and use fused "
            "norm, rotary and activation kernels there."
        )
    if program.training:
        return "Compile the model (torch.compile); use fused norms, activations and a fused optimizer (fused=True)."
    return _GENERAL["unfused-elementwise"]


def copy_advice(summary: Summary) -> str | None:
    """Return advice on copies by their direction; ``None`` where the capture does not record it."""
    seconds = {way: summary.metrics.get(f"copy_{way}_s") or 0.0 for way in ("h2d", "d2h", "d2d")}
    total = summary.metrics.get("copy_s") or 0.0
    if (
        total > 0
        and sum(seconds.values()) < 0.5 * total
        and any(summary.metrics.get(f"copy_{way}_s") is not None for way in seconds)
    ):
        return (
            "Most of it is neither from nor to the host (peers, unified memory, fills): overlap it with computing, send fewer bytes, and "
            "keep data where it is used."
        )
    if sum(seconds.values()) < 0.5 * total or total <= 0:
        return None
    most = max(seconds, key=lambda way: seconds[way])
    if most == "d2d":
        return (
            "Most of it is copied within the device: look for .contiguous(), cat, clone and layout changes, write results in place, "
            "and keep one layout."
        )
    pageable = summary.metrics.get("copy_pageable_s") or 0.0
    if pageable < 0.1 * seconds[most]:
        return (
            "The host memory is pinned already: overlap the copies with computing (another stream, the next input while this one is "
            "worked on), send fewer bytes, and keep on the device what is used again."
        )
    return None


def _without_keys(advice: str) -> str:
    """Remove brackets around our configuration keys, then sentences that still name one."""
    shorter = re.sub(r"\s*\([^()]*\b(?:model|infer|run|dataset|pipeline)\.[a-z_]+[^()]*\)", "", advice)
    sentences = re.split(r"(?<=\.) ", shorter)  # half a sentence is meaningless
    kept = [one for one in sentences if not _OWN_KEY.search(one)]
    text = " ".join(kept).strip().rstrip(";").rstrip()
    return (text if text.endswith(".") else f"{text}.") if text else "See the evidence."


# The profiler itself: Python frames and stacks cost the host time at every call.


_INFLATED = frozenset(("launch-bound", "host-idle", "host-sync", "input-pipeline"))
_MANY_FRAMES = 1000


def name_profiler_overhead(finding: Finding, summary: Summary) -> Finding:
    """Add to findings about the host that the profiler inflates them, where it recorded Python frames."""
    frames = summary.metrics.get("profiled_python_frames") or 0.0
    if finding.id not in _INFLATED or frames < _MANY_FRAMES:
        return finding
    text = (
        f"the profiler recorded {units.count(frames)} Python frames (with_stack): the host is slower than without it, so this time is "
        "inflated"
    )
    confidence = "medium" if finding.confidence == "high" else finding.confidence
    return replace(finding, evidence=[*finding.evidence, text], confidence=confidence)
