"""Captures with nothing to recover, among them those that only look as if there were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .decoder import Model
from .gpus import A100, H100, MI300X
from .labels import Case, World
from .machine import COMPUTE, SECOND, Program, Rank
from .planted import copies_beside, held_by_earlier_work, waits_for_workers
from .programs import Links, Plan, encode, generate, train

LARGE = Model(layers=8)
BATCHES = Plan(Model(hidden=4096, inner=11008, layers=6), batch=8, prompt=512, steps=5)


def healthy_cases() -> Iterator[Case]:
    """Full devices, overlapped communication and copies, queued work, graphs."""
    yield Case("full-prefill", "kineto", (), World(H100), lambda rank: encode(rank, BATCHES))
    yield Case("full-prefill-nsys", "nsys", (), World(H100), lambda rank: encode(rank, BATCHES))
    decode = Plan(LARGE, batch=64, steps=10)
    yield Case("full-decode", "kineto", (), World(H100, with_stack=True), lambda rank: generate(rank, decode))
    yield Case("full-decode-mi300", "kineto", (), World(MI300X), lambda rank: generate(rank, replace(decode, ranges="vllm")))  # fmt: skip
    ahead = replace(decode, waits=False, ranges="none")
    yield Case("launches-far-ahead", "kineto", (), World(A100), lambda rank: generate(rank, ahead))
    yield Case("launches-far-ahead-nsys", "nsys", (), World(A100), lambda rank: generate(rank, ahead))
    graphs = replace(decode, graph=True, ranges="sglang")
    yield Case("graphs-fill-the-device", "kineto", (), World(H100), lambda rank: generate(rank, graphs))
    yield Case("graphs-fill-the-device-nsys", "nsys", (), World(H100), lambda rank: generate(rank, replace(graphs, ranges="plain")))  # fmt: skip
    held = World(MI300X, start=held_by_earlier_work(320.0))
    short = replace(decode, prompt=0, steps=3, waits=False)
    yield Case("queued-behind-earlier-work", "kineto", (), held, lambda rank: generate(rank, replace(short, graph=True, ranges="sglang")))  # fmt: skip
    held = World(H100, start=held_by_earlier_work(90.0))
    yield Case("queued-behind-earlier-work-nsys", "nsys", (), held, lambda rank: generate(rank, short))
    overlapped = Plan(
        Model(hidden=4096, inner=11008, layers=6), batch=16, prompt=1024, steps=2, links=Links(400e9)
    )
    yield Case(
        "overlapped-all-reduce",
        "kineto",
        (),
        World(H100, 2, clocks_ms=3.0),
        lambda rank: train(rank, overlapped),
    )
    yield Case("overlapped-all-reduce-nsys", "nsys", (), World(H100, 2), lambda rank: train(rank, overlapped), one_file=True)  # fmt: skip
    prefetched = replace(BATCHES, in_layer=copies_beside(12.0))
    yield Case("copies-overlapped", "kineto", (), World(H100), lambda rank: encode(rank, prefetched))
    hidden = replace(BATCHES, waits=False, before_step=waits_for_workers(6.0))
    yield Case("loader-hidden-by-queue", "kineto", (), World(A100), lambda rank: encode(rank, hidden))
    yield Case("two-streams", "kineto", (), World(H100), two_streams)
    yield Case("two-streams-nsys", "nsys", (), World(H100), two_streams)
    yield Case("long-elementwise", "kineto", (), World(A100), long_elementwise)
    yield Case("long-elementwise-nsys", "nsys", (), World(A100), long_elementwise)


def two_streams(rank: Rank) -> Program:
    """Two independent halves of a batch side by side: each stream has holes, the device has none."""
    gpu = rank.gpu
    for _ in range(40):
        for stream in (COMPUTE, SECOND):
            rank.kernel(gpu.gemm(4096, 8192, 4096), stream)
            rank.kernel(gpu.gemm(4096, 4096, 8192, name="gemm_wide"), stream)
            rank.kernel(gpu.moving("norm", 4 * 4096 * 4096 * 2.0, "_C::fused_add_rms_norm"), stream)
    rank.synchronise("cudaDeviceSynchronize")
    yield from ()


def long_elementwise(rank: Rank) -> Program:
    """Element-wise kernels of tens of milliseconds over all of memory: nothing a fused kernel would save."""
    gpu = rank.gpu
    for _ in range(8):
        rank.kernel(gpu.moving("add", 60e9, "aten::add"))
        rank.kernel(gpu.gemm(16384, 16384, 16384))
    rank.synchronise("cudaDeviceSynchronize")
    yield from ()
