"""What is run: generation by one or several ranks, batches through an encoder, training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from .decoder import Model, Style, attention_part, feed_forward_part, norm
from .events import AUTOGRAD_THREAD, DeviceEvent
from .gpus import BF16, Kernel
from .machine import COMMUNICATION, COMPUTE, US, Program, Rank

Hook = Callable[[Rank, int], None]
"""Something the host does at a place of the program; gets the number of the step or layer."""


def nothing(rank: Rank, number: int) -> None:
    """Leave the program as it is."""


@dataclass(frozen=True, slots=True)
class Links:
    """How ranks talk."""

    bytes_per_s: float = 180e9
    """Bus bandwidth a collective reaches."""
    latency_ns: int = 14 * US
    custom: bool = False
    """An engine's own all-reduce kernel on the compute stream, without NCCL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One program."""

    model: Model = field(default_factory=Model)
    style: Style = field(default_factory=Style)
    batch: int = 32
    prompt: int = 128
    """New positions per sequence in prefill; 0: no prefill."""
    context: int = 2048
    steps: int = 8
    ranges: str = "plain"
    """How phases are called: plain, vllm, sglang, none."""
    graph: bool = False
    """Decode steps are one graph launch each."""
    waits: bool = True
    """Each step ends with the host fetching the token."""
    links: Links = field(default_factory=Links)
    before_step: Hook = nothing
    in_layer: Hook = nothing
    overlap: bool = True
    """Training: gradients are reduced while backward goes on."""


def phase_range(rank: Rank, plan: Plan, decode: bool) -> AbstractContextManager[Any]:
    """The range an engine opens around one step."""
    tokens = plan.batch * plan.prompt
    names = {
        "plain": ("prefill", "decode"),
        "vllm": (
            f"execute_context_{plan.batch}({tokens})_generation_0(0)",
            f"execute_context_0(0)_generation_{plan.batch}({plan.batch})",
        ),
        "sglang": (f"step[EXTEND bs={plan.batch} toks={tokens}]", f"step[DECODE bs={plan.batch}]"),
    }
    return nullcontext() if plan.ranges == "none" else rank.range(names[plan.ranges][decode])


def generate(rank: Rank, plan: Plan) -> Program:
    """Prefill, then one token per step."""
    with rank.frame("generate.py(41): main"), rank.frame("engine/loop.py(212): run"):
        if plan.prompt:
            yield from _step(rank, plan, -1)
        for step in range(plan.steps):
            with rank.frame("engine/loop.py(230): schedule"):
                plan.before_step(rank, step)
                rank.work(6 * US)
            yield from _step(rank, plan, step)
        rank.synchronise("cudaDeviceSynchronize")


def _step(rank: Rank, plan: Plan, step: int) -> Program:
    decode = step >= 0
    tokens, context = (1, plan.context + step) if decode else (plan.prompt, plan.prompt)
    with phase_range(rank, plan, decode), rank.frame("engine/runner.py(88): execute_model"):
        if plan.graph and decode:
            rank.kernel(_embedding(rank, plan, plan.batch))
            rank.graph(list(_all_kernels(rank, plan, tokens, context)))
        else:
            rank.kernel(_embedding(rank, plan, plan.batch * tokens))
            for layer in range(plan.model.layers):
                with rank.frame(f"models/decoder.py(310): forward_layer_{layer}"):
                    if decode:
                        plan.in_layer(rank, step * plan.model.layers + layer)
                    yield from _layer(rank, plan, tokens, context)
        rank.kernel(
            rank.gpu.gemm(plan.batch, plan.model.vocabulary // plan.model.parallel, plan.model.hidden)
        )
        if decode or plan.waits:
            _sample(rank, plan)


def _layer(rank: Rank, plan: Plan, tokens: int, context: int) -> Program:
    parts = (
        attention_part(rank.gpu, plan.model, plan.style, plan.batch, tokens, context),
        feed_forward_part(rank.gpu, plan.model, plan.style, plan.batch, tokens),
    )
    for part in parts:
        for kernel in part:
            rank.kernel(kernel)
        if plan.model.parallel > 1:
            yield from all_reduce(rank, plan.batch * tokens * plan.model.hidden, plan.links)


def _all_kernels(rank: Rank, plan: Plan, tokens: int, context: int) -> Iterator[Kernel]:
    for _ in range(plan.model.layers):
        yield from attention_part(rank.gpu, plan.model, plan.style, plan.batch, tokens, context)
        yield from feed_forward_part(rank.gpu, plan.model, plan.style, plan.batch, tokens)


def _embedding(rank: Rank, plan: Plan, rows: int) -> Kernel:
    return rank.gpu.moving(
        "embedding", 2.0 * rows * plan.model.hidden * BF16, "aten::embedding", "aten::index_select"
    )


def _sample(rank: Rank, plan: Plan) -> None:
    rank.kernel(rank.gpu.moving("argmax", 2.0 * plan.batch * plan.model.vocabulary * BF16, "aten::argmax"))
    if plan.waits:
        rank.item()


def encode(rank: Rank, plan: Plan) -> Program:
    """Batches through all layers, one after the other, as offline inference does."""
    with rank.frame("run_batches.py(57): main"):
        for step in range(plan.steps):
            with rank.range(f"ProfilerStep#{step + 5}") if plan.ranges != "none" else nullcontext():
                with rank.frame("run_batches.py(61): next_batch"):
                    plan.before_step(rank, step)
                with rank.frame("run_batches.py(64): forward"):
                    rank.kernel(_embedding(rank, plan, plan.batch * plan.prompt))
                    for layer in range(plan.model.layers):
                        plan.in_layer(rank, step * plan.model.layers + layer)
                        yield from _layer(rank, plan, plan.prompt, plan.prompt)
                    for kernel in norm(rank.gpu, plan.style, plan.batch * plan.prompt, plan.model.hidden):
                        rank.kernel(kernel)
                if plan.waits:
                    rank.item()
        rank.synchronise("cudaDeviceSynchronize")


def train(rank: Rank, plan: Plan) -> Program:
    """Forward, backward on autograd's thread with the gradients reduced in buckets, and the optimiser."""
    for step in range(plan.steps):
        with rank.range(f"ProfilerStep#{step + 3}"):
            plan.before_step(rank, step)
            with rank.range("DistributedDataParallel.forward"):
                for layer in range(plan.model.layers):
                    plan.in_layer(rank, step * plan.model.layers + layer)
                    _forward(rank, plan)
            with rank.on_thread(AUTOGRAD_THREAD):
                yield from _backward(rank, plan)
            with rank.range("Optimizer.step#AdamW.step"):
                weights = plan.model.layers * _layer_weights(plan.model)
                rank.kernel(rank.gpu.moving("adam", 14.0 * weights / 8, "aten::_fused_adamw_"))
    rank.synchronise("cudaDeviceSynchronize")


def _forward(rank: Rank, plan: Plan) -> None:
    for kernel in attention_part(rank.gpu, plan.model, plan.style, plan.batch, plan.prompt, plan.prompt):
        rank.kernel(kernel)
    for kernel in feed_forward_part(rank.gpu, plan.model, plan.style, plan.batch, plan.prompt):
        rank.kernel(kernel)


def _backward(rank: Rank, plan: Plan) -> Program:
    rows, model, reduced = plan.batch * plan.prompt, plan.model, 0
    for layer in range(model.layers):
        with rank.op("autograd::engine::evaluate_function: MmBackward0"):
            for _ in range(2):
                rank.kernel(rank.gpu.gemm(rows, 3 * model.inner, model.hidden, name="gemm_backward"))
        with rank.op("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0"):
            for _ in range(2):
                rank.kernel(rank.gpu.gemm(rows, model.qkv + model.hidden, model.hidden, name="gemm_backward"))
            rank.kernel(rank.gpu.moving("attention_backward", 14.0 * rows * model.hidden * BF16, "aten::_flash_attention_backward"))  # fmt: skip
        reduced += _layer_weights(model)
        if plan.overlap and rank.world > 1 and layer % 2:
            yield from all_reduce(rank, reduced, plan.links, blocking=False)
            reduced = 0
    if rank.world > 1:
        yield from all_reduce(rank, reduced or _layer_weights(model) // 8, plan.links)


def _layer_weights(model: Model) -> int:
    return model.hidden * (model.qkv + model.hidden + 3 * model.inner)


def all_reduce(rank: Rank, elements: int, links: Links, *, blocking: bool = True) -> Program:
    """Sum over all ranks; ``blocking``: what follows on the compute stream waits for it."""
    size = elements * BF16
    transfer = int(2 * (rank.world - 1) / rank.world * size / links.bytes_per_s * 1e9) + links.latency_ns
    rank.now += rank.jitter(rank.costs.between, 0.5)
    if links.custom:
        with rank.op("_C_custom_ar::all_reduce"):
            event = DeviceEvent("kernel", rank.gpu.names["custom_all_reduce"], 0, 0, COMPUTE, None, grid=(36, 1, 1), block=(512, 1, 1))  # fmt: skip
            rank.submit("cudaLaunchKernel", event)
        yield from rank.entered(event, transfer)
        _book_exposed(rank, event, transfer, event.start_ns)
        return
    described = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": rank.world,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(rank.world))),
        "In split size": "[]",
        "Out split size": "[]",
    }
    with (
        rank.op("c10d::allreduce_"),
        rank.op("record_param_comms", [[elements]], **described),
        rank.range("nccl:all_reduce"),
    ):
        rank.call("cudaEventRecord", 1_100)
        rank.call("cudaStreamWaitEvent", 900)
        event = DeviceEvent(
            "kernel", rank.gpu.names["all_reduce"], 0, 0, COMMUNICATION, None, grid=(24, 1, 1), block=(544, 1, 1), args=described,
        )  # fmt: skip
        rank.submit("cudaLaunchKernelExC", event, after_ns=rank.ready.get(COMPUTE, 0) + 1_500)
    yield from rank.entered(event, transfer)
    rank.outstanding.append((event, transfer))
    if blocking:
        rank.call("cudaStreamWaitEvent", 900)
        _wait_for_collectives(rank)


def _wait_for_collectives(rank: Rank) -> None:
    """The compute stream waits for all collectives; book what it has nothing to do beside."""
    computing_until = rank.ready.get(COMPUTE, 0)
    for event, transfer in rank.outstanding:
        _book_exposed(rank, event, transfer, max(event.start_ns, computing_until))
        rank.ready[COMPUTE] = max(rank.ready.get(COMPUTE, 0), event.end_ns)
    rank.outstanding.clear()


def _book_exposed(rank: Rank, event: DeviceEvent, transfer_ns: int, since_ns: int) -> None:
    """Book the time from ``since_ns``; where one rank is late on purpose, waiting for it has a name of its own."""
    if rank.straggler is not None:
        complete = event.end_ns - transfer_ns
        if complete > since_ns:
            rank.lose("straggler", complete - since_ns)
        since_ns = max(since_ns, complete)
    if event.end_ns > since_ns:
        rank.lose("exposed-communication", event.end_ns - since_ns)
