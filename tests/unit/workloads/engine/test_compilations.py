"""Compilations are made in the warm-up, for every shape of the run, and counted wherever they fall."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.config.schema import CompileMode
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.process.tools import HIDE
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.devices import missing_compiler
from llm_perf_opt.workloads.engine.compilations import CompilationLog
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.models.decode_step import cache_room
from llm_perf_opt.workloads.registry import load_adapter
from llm_perf_opt.workloads.setup import check_inputs
from tests.unit.small_workloads import samples, workload

COMPILED: dict[str, Any] = {"compile": True}


@pytest.fixture
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile itself, guards and all, without generating code: that takes minutes on a busy machine."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **options: real(call, backend="eager", **options))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("key", ["model.compile", "model.compile_vision"])
def test_without_a_compiler_it_is_refused_before_any_work(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(HIDE, "g++,clang++")
    with pytest.raises(ConfigError) as caught:
        check_inputs(compose_config([f"{key}=true", "model.cache=static", "run.device=cpu"]))
    assert caught.value.data["key"] == key
    assert missing_compiler("cpu") is not None
    check_inputs(compose_config(["run.device=cpu"]))


def requests(*lengths: int) -> list[Sample]:
    return [Sample(f"of{length}", synthetic_tokens=length) for length in lengths]


@pytest.mark.parametrize("tokens", [1, 7, 63, 64, 65, 100, 511, 512, 513, 1000, 4096, 4097, 100_000])
def test_caches_come_in_few_lengths_and_waste_little(tokens: int) -> None:
    room = cache_room(tokens)
    assert room >= tokens
    assert room - tokens < max(64, tokens / 4)
    assert len({cache_room(n) for n in range(1025, 2049)}) == 8


@pytest.mark.usefixtures("graphs_only")
@pytest.mark.parametrize("batch_size", [1, 2])
def test_no_compilation_falls_into_a_measured_pass(batch_size: int) -> None:
    """Lengths that share a cache, and lengths that do not; the last batch is a smaller one."""
    chosen = workload("llama", static=True, model=COMPILED, max_new_tokens=4, batch_size=batch_size)
    requested = requests(10, 20, 130, 140, 11)
    result = run_workload(chosen, requested)
    found = result.workload().compilations
    assert found is not None
    shapes = {(len(batch.ids), cache_room(batch.prompt_tokens + 4)) for batch in result.batches}
    assert found.warmup == len(shapes) > 1
    assert found.warmup_s > 0
    assert (found.measured, found.measured_s, found.phases) == (0, 0.0, {})
    plain = run_workload(workload("llama", static=True, max_new_tokens=4, batch_size=batch_size), requested)
    assert [each.token_ids for each in result.samples] == [each.token_ids for each in plain.samples]
    assert plain.workload().compilations is None


@pytest.mark.usefixtures("graphs_only")
def test_a_compilation_in_a_measured_pass_is_counted_where_it_fell() -> None:
    engine = Engine(workload("llama", static=True, model=COMPILED, max_new_tokens=3))
    engine.warm_up(requests(10))
    engine.run_sample(requests(20))
    log = engine.compilations
    assert log is not None
    assert log.summary().measured == 0
    engine.run_sample(requests(200))
    found = log.summary()
    assert (found.warmup, found.measured, found.phases) == (1, 1, {"decode": 1})
    assert found.measured_s > 0


@pytest.mark.usefixtures("graphs_only")
def test_more_shapes_than_torch_compiles_by_itself() -> None:
    """Beyond its own limit (eight, here two) torch would run the rest uncompiled, without a word to anybody."""
    with torch._dynamo.config.patch(recompile_limit=2):
        engine = Engine(workload("llama", static=True, model=COMPILED, max_new_tokens=2))
        for count in range(4):
            engine.warm_up(requests(40 + 64 * count), rounds=1)
    assert engine.compilations is not None
    assert engine.compilations.summary().warmup == 4


@pytest.mark.usefixtures("graphs_only")
def test_a_compiled_encoder_settles_in_the_warm_up_and_is_still_timed_by_its_parts(tmp_path: Path) -> None:
    """Hooks that time its parts are new in every pass: compiled with them, it would be compiled in every pass."""
    pages = samples("v1", tmp_path, 2)
    chosen = workload(
        "v1", static=True, model={**COMPILED, "compile_vision": True}, max_new_tokens=2, repeats=2
    )
    result = run_workload(chosen, pages)
    found = result.workload().compilations
    assert found is not None
    assert found.warmup > 0
    assert (found.measured, found.phases) == (0, {})
    for batch in result.batches:
        for timings in batch.repeats:
            assert {"sam_s", "clip_s", "projector_s"} <= set(timings.components)
    plain = run_workload(workload("v1", static=True, max_new_tokens=2), pages)
    assert [each.token_ids for each in result.samples] == [each.token_ids for each in plain.samples]


@pytest.mark.needs("compiler")
def test_real_code_generation_compiles_once_for_several_prompts() -> None:
    """inductor, as users have it: needs a C++ compiler on a CPU."""
    torch._dynamo.reset()
    chosen = workload("llama", static=True, model=COMPILED, max_new_tokens=4)
    result = run_workload(chosen, requests(10, 30))
    found = result.workload().compilations
    assert found is not None
    assert (found.warmup, found.measured) == (1, 0)


@pytest.mark.usefixtures("graphs_only")
def test_another_engine_in_the_process_is_not_counted() -> None:
    log = CompilationLog()
    with log.watch():
        pass
    other = torch.compile(lambda x: x + 1)
    other(torch.ones(3))
    assert log.summary().measured == 0
    with log.watch():
        other(torch.ones(3, dtype=torch.float64))
        torch._dynamo.reset()  # forgets who watches
    assert log.summary().measured == 1


@pytest.mark.parametrize(
    ("mode", "freezing", "expected"),
    [
        ("default", False, None),
        ("default", True, {"freezing": True}),
        ("reduce_overhead", False, {"triton.cudagraphs": True}),
        ("max_autotune_no_cudagraphs", True, {"max_autotune": True, "freezing": True}),
    ],
)
def test_modes_of_compiling_reach_inductor(mode: str, freezing: bool, expected: Any) -> None:
    """A mode and options cannot be given together: the mode is given as its options."""
    made = workload("llama", static=True)
    chosen = dataclasses.replace(
        made.model, compile=True, compile_mode=CompileMode(mode), compile_freezing=freezing
    )
    adapter: Any = load_adapter(chosen, made.infer)
    found = adapter._compile_options()
    assert found == expected if expected is None else expected.items() <= found.items()
