"""The labelled captures: causes, one at a time and two together, in both formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .decoder import Model, Style
from .gpus import A100, H100, MI300X
from .healthy import healthy_cases
from .labels import Case, World
from .machine import HostCosts, Program, Rank
from .planted import (
    all_of,
    allocates,
    copies_in,
    every,
    fetches_and_thinks,
    loads_in_own_range,
    loads_in_the_main_thread,
    python_between,
    waits_for_workers,
)
from .programs import Links, Plan, encode, generate, train

SMALL = Model(hidden=1024, inner=2816, heads=16, kv_heads=4, layers=16, vocabulary=32000)
MEDIUM = Model(hidden=2048, inner=5632, heads=16, kv_heads=4, layers=16, vocabulary=32000)
LARGE = Model(layers=8)
ENCODER = Model(hidden=2048, inner=5632, heads=16, kv_heads=16, layers=10)
BATCHES = Plan(model=ENCODER, batch=16, prompt=512, steps=6)
"""About 11 ms a batch on an H100."""
TRAINING = Plan(
    model=Model(hidden=2048, inner=5632, heads=16, kv_heads=16, layers=8), batch=8, prompt=1024, steps=3
)
SLOW_HOST = HostCosts(operator=2_200, between=6_500, launch=5_200)


def running(program: Callable[[Rank, Plan], Program], plan: Plan) -> Callable[[Rank], Program]:
    """Bind a plan to a program."""
    return lambda rank: program(rank, plan)


def _input_pipeline() -> Iterator[Case]:
    on_h100, on_mi300 = World(H100), World(MI300X, with_stack=True)
    for share, milliseconds in (("small", 2.2), ("half", 14.0), ("large", 30.0)):
        plan = replace(BATCHES, before_step=waits_for_workers(milliseconds))
        yield Case(f"loader-workers-{share}", "kineto", ("input-pipeline",), on_h100, running(encode, plan))
    plan = replace(BATCHES, before_step=loads_in_the_main_thread(11.0))
    yield Case("loader-main-thread-mi300", "kineto", ("input-pipeline",), on_mi300, running(encode, plan))
    plan = replace(BATCHES, before_step=loads_in_own_range("load_batch", 7.0), ranges="none")
    yield Case(
        "load-batch-range", "kineto", ("input-pipeline",), on_h100, running(encode, plan), suffix=".json"
    )
    yield Case("load-batch-range-nsys", "nsys", ("input-pipeline",), on_h100, running(encode, plan))
    plan = Plan(LARGE, steps=10, before_step=every(5, loads_in_own_range("tokenize", 16.0)))
    yield Case("tokenize-between-requests", "kineto", ("input-pipeline",), World(A100, with_stack=True), running(generate, plan))  # fmt: skip
    yield Case(
        "tokenize-between-requests-nsys", "nsys", ("input-pipeline",), World(A100), running(generate, plan)
    )
    plan = replace(BATCHES, before_step=waits_for_workers(24.0), waits=False)
    yield Case("loader-slower-than-the-device", "kineto", ("input-pipeline",), on_h100, running(encode, plan))


def _host_sync() -> Iterator[Case]:
    for name, microseconds, often in (("small", 300, 4), ("medium", 350, 2), ("large", 420, 1)):
        plan = Plan(LARGE, steps=8, in_layer=every(often, fetches_and_thinks(microseconds)))
        yield Case(f"item-in-layers-{name}", "kineto", ("host-sync",), World(H100), running(generate, plan))
        yield Case(
            f"item-in-layers-{name}-nsys", "nsys", ("host-sync",), World(H100), running(generate, plan)
        )
    plan = Plan(
        LARGE, steps=8, ranges="vllm", in_layer=every(2, fetches_and_thinks(400, "cudaDeviceSynchronize"))
    )
    yield Case("device-synchronize-mi300", "kineto", ("host-sync",), World(MI300X, with_stack=True), running(generate, plan))  # fmt: skip
    plan = Plan(LARGE, steps=8, ranges="none", in_layer=every(2, fetches_and_thinks(300, "nonzero")))
    yield Case(
        "nonzero-routing", "kineto", ("host-sync",), World(A100), running(generate, plan), suffix=".json"
    )


def _launch_bound() -> Iterator[Case]:
    def case(name: str, plan: Plan, world: World, format_: str = "kineto") -> Case:
        bound = replace(world, default_cause="launch-bound")
        return Case(name, format_, ("launch-bound",), bound, running(generate, plan))  # type: ignore[arg-type]

    small = Plan(SMALL, batch=16, context=1024, prompt=0, steps=10)
    yield case("tiny-kernels-eager", small, World(H100))
    yield case("tiny-kernels-eager-nsys", small, World(H100), "nsys")
    yield case("tiny-kernels-with-stack", replace(small, ranges="sglang"), World(H100, with_stack=True))
    yield case("tiny-kernels-mi300", replace(small, ranges="none"), World(MI300X))
    medium = Plan(MEDIUM, batch=8, context=1024, prompt=0, steps=8)
    yield case("medium-kernels", medium, World(A100))
    yield case("medium-kernels-slow-host", medium, World(A100, costs=SLOW_HOST))
    yield case(
        "medium-kernels-slow-host-nsys", replace(medium, ranges="none"), World(A100, costs=SLOW_HOST), "nsys"
    )


def _host_idle() -> Iterator[Case]:
    for name, milliseconds in (("small", 9.5), ("medium", 14.0), ("large", 24.0)):
        plan = replace(BATCHES, waits=False, in_layer=every(5, python_between(milliseconds), 3))
        yield Case(f"python-in-loop-{name}", "kineto", ("host-idle",), World(H100, with_stack=True), running(encode, plan))  # fmt: skip
    plan = replace(BATCHES, waits=False, ranges="none", in_layer=every(5, python_between(12.0), 3))
    yield Case("python-in-loop-no-frames", "kineto", ("host-idle",), World(H100), running(encode, plan))
    yield Case("python-in-loop-nsys", "nsys", ("host-idle",), World(H100), running(encode, plan))
    plan = replace(
        BATCHES, waits=False, in_layer=every(5, python_between(13.0, "postprocess.py(19): merge_boxes"), 3)
    )
    yield Case(
        "postprocess-mi300", "kineto", ("host-idle",), World(MI300X, with_stack=True), running(encode, plan)
    )


def _allocation() -> Iterator[Case]:
    for name, milliseconds, often in (("small", 0.35, 8), ("medium", 0.9, 4), ("large", 1.4, 2)):
        plan = Plan(LARGE, steps=8, in_layer=every(often, allocates(milliseconds)))
        yield Case(f"malloc-free-{name}", "kineto", ("allocation",), World(H100), running(generate, plan))
    yield Case("malloc-free-nsys", "nsys", ("allocation",), World(H100), running(generate, plan))
    plan = replace(BATCHES, waits=False, in_layer=allocates(2.7, frees=False))
    yield Case("malloc-only-mi300", "kineto", ("allocation",), World(MI300X), running(encode, plan))


def _copies() -> Iterator[Case]:
    for name, megabytes in (("small", 45.0), ("medium", 90.0), ("large", 400.0)):
        plan = replace(BATCHES, before_step=copies_in(megabytes))
        yield Case(f"input-copy-{name}", "kineto", ("copies",), World(H100), running(encode, plan))
    yield Case("input-copy-large-nsys", "nsys", ("copies",), World(H100), running(encode, plan))
    plan = replace(BATCHES, steps=3, in_layer=copies_in(25.0))
    yield Case("weights-offloaded", "kineto", ("copies",), World(A100), running(encode, plan))
    plan = replace(BATCHES, before_step=copies_in(60.0, pinned=False))
    yield Case("pageable-input-mi300", "kineto", ("copies",), World(MI300X), running(encode, plan))
    yield Case("pageable-input-nsys", "nsys", ("copies",), World(A100), running(encode, plan))


def _kernels() -> Iterator[Case]:
    eager = Style(eager_attention=True)
    for name, prompt, gpu in (("medium", 1024, H100), ("large", 2048, A100), ("long", 4096, MI300X)):
        plan = Plan(replace(LARGE, layers=6), eager, batch=2, prompt=prompt, steps=3)
        yield Case(
            f"eager-attention-{name}", "kineto", ("eager-attention",), World(gpu), running(encode, plan)
        )
    plan = Plan(replace(LARGE, layers=6), eager, batch=2, prompt=2048, steps=3)
    yield Case("eager-attention-nsys", "nsys", ("eager-attention",), World(H100), running(encode, plan))
    unfused = Style(eager_norm=True)
    for name, batch, gpu in (("h100", 1, H100), ("a100", 2, A100), ("mi300", 2, MI300X)):
        plan = Plan(LARGE, unfused, batch=batch, prompt=1024, steps=4)
        yield Case(f"unfused-{name}", "kineto", ("unfused-elementwise",), World(gpu), running(encode, plan))
    plan = Plan(LARGE, unfused, batch=2, prompt=1024, steps=4)
    yield Case("unfused-nsys", "nsys", ("unfused-elementwise",), World(H100), running(encode, plan))
    for name, slowdown in (("small", 1.6), ("medium", 3.0), ("large", 5.0)):
        plan = Plan(LARGE, Style(misaligned=slowdown), batch=4, prompt=1024, steps=3)
        gpu = A100 if name == "medium" else H100
        yield Case(f"misaligned-{name}", "kineto", ("misaligned-gemm",), World(gpu), running(encode, plan))


def _communication() -> Iterator[Case]:
    cause = ("exposed-communication",)
    apart = replace(TRAINING, overlap=False)
    yield Case(
        "all-reduce-after-backward", "kineto", cause, World(H100, 4, clocks_ms=3.0), running(train, apart)
    )
    slow = replace(apart, links=Links(40e9))
    yield Case("all-reduce-slow-links", "kineto", cause, World(H100, 8, captured=1), running(train, slow))
    yield Case(
        "all-reduce-slow-links-mi300", "kineto", cause, World(MI300X, 8, captured=1), running(train, slow)
    )
    yield Case("all-reduce-nsys", "nsys", cause, World(H100, 2), running(train, slow), one_file=True)
    partly = replace(TRAINING, links=Links(18e9))
    yield Case("buckets-do-not-fit", "kineto", cause, World(A100, 2, clocks_ms=2.0), running(train, partly))
    parallel = Plan(replace(LARGE, parallel=4, layers=10), steps=6, links=Links(latency_ns=45_000))
    yield Case(
        "tensor-parallel-decode", "kineto", cause, World(H100, 4, clocks_ms=4.0), running(generate, parallel)
    )
    yield Case(
        "tensor-parallel-decode-nsys",
        "nsys",
        cause,
        World(H100, 4),
        running(generate, parallel),
        one_file=True,
    )
    prefill = Plan(replace(LARGE, parallel=2, layers=6), batch=8, prompt=512, steps=4, links=Links(330e9))
    yield Case(
        "tensor-parallel-prefill", "kineto", cause, World(H100, 2, clocks_ms=1.0), running(encode, prefill)
    )
    custom = replace(parallel, links=Links(latency_ns=38_000, custom=True), ranges="vllm")
    yield Case("custom-all-reduce", "kineto", cause, World(H100, 4, captured=2), running(generate, custom))
    yield Case(
        "custom-all-reduce-mi300", "kineto", cause, World(MI300X, 4, captured=1), running(generate, custom)
    )


def _stragglers() -> Iterator[Case]:
    plan = replace(TRAINING, steps=4, links=Links(420e9))
    parallel = Plan(
        replace(LARGE, parallel=4, layers=10), steps=8, prompt=0, batch=64, links=Links(latency_ns=4_000)
    )
    cause = ("straggler",)
    for name, world in (
        ("two-ranks", World(H100, 2, straggler=1, slower=1.35, clocks_ms=3.0)),
        ("four-ranks", World(H100, 4, straggler=2, slower=1.8, clocks_ms=5.0)),
        ("eight-ranks-mi300", World(MI300X, 8, straggler=5, slower=1.25, clocks_ms=8.0)),
    ):
        yield Case(f"straggler-training-{name}", "kineto", cause, world, running(train, plan))
    world = World(A100, 4, straggler=0, slower=1.5, clocks_ms=4.0)
    yield Case("straggler-tensor-parallel", "kineto", cause, world, running(generate, parallel))
    yield Case("straggler-nsys", "nsys", cause, World(H100, 2, straggler=1, slower=1.6), running(train, plan))
    yield Case("straggler-nsys-one-file", "nsys", cause, World(H100, 4, straggler=3, slower=1.5), running(train, plan), one_file=True)  # fmt: skip


def _two_causes() -> Iterator[Case]:
    both = ("input-pipeline", "copies")
    plan = replace(BATCHES, before_step=all_of(copies_in(60.0), loads_in_own_range("load_batch", 16.0)))
    yield Case("loader-and-copies", "kineto", both, World(H100), running(encode, plan))
    yield Case("loader-and-copies-nsys", "nsys", both, World(H100), running(encode, plan))
    plan = replace(TRAINING, overlap=False, links=Links(60e9), before_step=waits_for_workers(95.0))
    yield Case("communication-and-loader", "kineto", ("input-pipeline", "exposed-communication"), World(H100, 2, clocks_ms=2.0), running(train, plan))  # fmt: skip
    plan = Plan(replace(LARGE, layers=6), Style(eager_attention=True), batch=2, prompt=2048, steps=3, before_step=waits_for_workers(26.0))  # fmt: skip
    yield Case("eager-attention-and-loader", "kineto", ("eager-attention", "input-pipeline"), World(A100), running(encode, plan))  # fmt: skip
    plan = Plan(
        LARGE, steps=8, in_layer=all_of(every(2, fetches_and_thinks(500)), every(8, allocates(0.8), 1))
    )
    yield Case(
        "sync-and-allocation", "kineto", ("host-sync", "allocation"), World(H100), running(generate, plan)
    )
    plan = Plan(LARGE, Style(eager_norm=True), batch=2, prompt=1024, steps=4, waits=False, in_layer=every(4, python_between(10.0), 2))  # fmt: skip
    yield Case("python-and-unfused", "kineto", ("host-idle", "unfused-elementwise"), World(H100, with_stack=True), running(encode, plan))  # fmt: skip
    plan = replace(TRAINING, overlap=False, links=Links(120e9), steps=3)
    world = World(H100, 4, straggler=1, slower=1.6, clocks_ms=6.0)
    yield Case("straggler-and-communication", "kineto", ("straggler", "exposed-communication"), world, running(train, plan))  # fmt: skip


def _profiled() -> Iterator[Case]:
    """The profiler slows the host: what is lost without it follows from wall-clock and kernels alone."""
    plan = Plan(replace(LARGE, layers=28), batch=32, prompt=0, steps=12)
    slow = HostCosts(operator=11_000, between=26_000, launch=14_000)
    program = running(generate, plan)
    case = Case(
        "profiler-inflates-decode", "kineto", ("launch-bound",), World(H100, costs=slow, with_stack=True), program,
        unprofiled_ratio=8 / 7, tokens_per_sample=12, steps=12,
    )  # fmt: skip
    yield case
    yield replace(case, name="profiler-inflates-part-of-a-sample", tokens_per_sample=100)
    yield replace(case, name="profiler-inflates-mi300", unprofiled_ratio=1.4, world=World(MI300X, costs=slow))
    yield replace(case, name="profiler-alone", causes=(), unprofiled_ratio=1.012)


def all_cases() -> list[Case]:
    """Every capture, in a fixed order, each with its own seed."""
    makers = (
        _input_pipeline, _host_sync, _launch_bound, _host_idle, _allocation, _copies, _kernels, _communication,
        _stragglers, _two_causes, _profiled, healthy_cases,
    )  # fmt: skip
    return [
        replace(case, seed=100 + number)
        for number, case in enumerate(one for make in makers for one in make())
    ]
