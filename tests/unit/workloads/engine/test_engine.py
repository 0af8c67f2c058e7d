"""What the engine measures, names and reports; which samples it leaves out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.hardware.accelerator import HostProcessor
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine import engine as engine_module
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine, StopCheck, ban_repeated_ngrams
from llm_perf_opt.workloads.engine.results import SampleResult, write_timings
from tests.text_facts import mentions
from tests.unit.small_workloads import samples, workload


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every range the engine opens, as a path of nested names."""
    seen: list[str] = []
    stack: list[str] = []

    @contextlib.contextmanager
    def record(name: str) -> Iterator[None]:
        stack.append(name)
        seen.append("/".join(stack))
        yield
        stack.pop()

    monkeypatch.setattr(engine_module, "stage", record)
    return seen


def test_phases_components_and_tokens_are_timed(tmp_path: Path) -> None:
    engine = Engine(workload("v1", max_new_tokens=6))
    _batch, done = engine.run_sample(samples("v1", tmp_path, 1))
    timings = done.timings
    assert timings.preprocess_s is not None
    assert timings.vision_s is not None
    assert timings.prefill_s is not None
    assert timings.decode_s is not None
    assert min(timings.preprocess_s, timings.vision_s, timings.prefill_s, timings.decode_s) > 0
    assert len(timings.token_s) == 5
    assert sum(timings.token_s) == pytest.approx(timings.decode_s)
    assert set(timings.components) == {
        "sam_s",
        "clip_s",
        "projector_s",
        "language_model_prefill_s",
        "lm_head_prefill_s",
    }
    inside = sum(timings.components[f"{label}_s"] for label in ("sam", "clip", "projector"))
    assert inside <= timings.vision_s
    assert (
        timings.components["language_model_prefill_s"] + timings.components["lm_head_prefill_s"]
        <= timings.prefill_s
    )


def test_text_model_has_no_vision_time(tmp_path: Path) -> None:
    _, done = Engine(workload("llama")).run_sample(samples("llama", tmp_path, 1))
    assert done.timings.vision_s is None


def test_ranges_nest_as_documented(ranges: list[str], tmp_path: Path) -> None:
    engine = Engine(workload("v1", max_new_tokens=3))
    engine.run_sample(samples("v1", tmp_path, 1))
    assert [name for name in ranges if "/" not in name] == ["preprocess", "vision", "prefill", "decode"]
    assert [name for name in ranges if name.startswith("vision/")] == [
        "vision/sam", "vision/clip", "vision/projector", "vision/sam", "vision/clip", "vision/projector",
    ]  # fmt: skip
    assert [name for name in ranges if name.startswith("decode/")] == ["decode/decode_step"] * 2


def test_warm_up_opens_no_phase_range(ranges: list[str], tmp_path: Path) -> None:
    """A capture that starts at the first ``decode`` must not start in the warm-up."""
    engine = Engine(workload("v1", max_new_tokens=3))
    engine.warm_up(samples("v1", tmp_path, 1), rounds=2)
    assert ranges == ["warmup"]


def test_hooks_are_gone_after_a_pass(tmp_path: Path) -> None:
    engine = Engine(workload("v1", max_new_tokens=2))
    engine.run_sample(samples("v1", tmp_path, 1))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in engine.model.modules())


def test_decode_runs_without_component_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("v1", max_new_tokens=3))
    real = engine.adapter.decode_step
    hooked: list[bool] = []

    def step(*arguments: Any) -> torch.Tensor:
        hooked.append(any(module._forward_hooks for module in engine.model.modules()))
        return real(*arguments)

    monkeypatch.setattr(engine.adapter, "decode_step", step)
    engine.run_sample(samples("v1", tmp_path, 1))
    assert hooked == [False, False]


def test_module_ranges_on_request(tmp_path: Path) -> None:
    """Inside a torch profiler every module shows up, and only when asked for."""
    from torch.profiler import ProfilerActivity, profile

    names = {}
    for wanted in (False, True):
        engine = Engine(replace(workload("v1", max_new_tokens=2), nvtx_modules=wanted))
        batch = engine.prepare(samples("v1", tmp_path, 1))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            engine.run_prepared(batch)
        names[wanted] = {event.key for event in profiler.key_averages()}
    assert {"vision", "prefill", "decode", "sam"} <= names[False]
    assert not any(name.startswith("module:") for name in names[False])
    assert "module:model.language_model.layers.1.mlp" in names[True]


def test_a_profiler_can_wrap_a_shorter_pass(tmp_path: Path) -> None:
    engine = Engine(workload("llama", max_new_tokens=8))
    batch = engine.prepare(samples("llama", tmp_path, 1))
    whole = engine.run_prepared(batch)
    short = engine.run_prepared(batch, max_new_tokens=3, components=False)
    assert short.token_ids[0] == whole.token_ids[0][:3]
    assert short.timings.components == {}


def test_context_limits_new_tokens(tmp_path: Path) -> None:
    """The answer ends where the model's context does, and the result says so."""
    configured = workload("llama", max_new_tokens=100)
    short = replace(
        configured,
        model=replace(configured.model, arch={"num_hidden_layers": 1, "max_position_embeddings": 40}),
    )
    result = run_workload(short, samples("llama", tmp_path, 1))
    assert result.samples[0].prompt_tokens + len(result.samples[0].token_ids) == 40
    left = len(result.samples[0].token_ids)
    assert any(mentions(note, str(left), "100") for note in result.notes)


def test_workload_result_and_document(tmp_path: Path) -> None:
    """Batches, repeats and answers; the document reads back as the summary's timings."""
    seen: list[str] = []
    result = run_workload(
        workload("v1", repeats=2, batch_size=2, max_new_tokens=5),
        samples("v1", tmp_path, 3),
        on_result=lambda one: seen.append(one.sample.id),
    )
    assert seen == ["page0", "page1", "page2"], "each answer is handed over once, in order"
    assert [batch.ids for batch in result.batches] == [["page0", "page1"], ["page2"]]
    assert [len(batch.repeats) for batch in result.batches] == [2, 2]
    assert result.info.weights == "random"
    assert any("random weights" in note for note in result.notes)
    path = write_timings(tmp_path / "timings.json", result)
    document = json.loads(path.read_text())
    assert document["schema"] == 1
    assert document["source"] == "engine"
    first = document["samples"][0]
    assert {"id", "prompt_tokens", "image_tokens", "new_tokens", "batch_size", "facts", "repeats"} <= set(
        first
    )
    assert first["batch_size"] == 2
    read = load_timings(path)
    assert read.timings.prefill_s is not None
    assert read.timings.prefill_s.n == 4
    assert read.timings.tpot_s is not None
    assert read.timings.tpot_s.n == 16
    assert set(read.timings.components) >= {"sam_s", "clip_s", "projector_s"}
    assert read.workload.samples == 3
    assert read.workload.new_tokens == 5


def test_sample_results_are_the_samples_own(tmp_path: Path) -> None:
    """In a padded batch each answer carries its own page's grid and token counts."""
    requests = samples("v1", tmp_path, 3)
    result = run_workload(workload("v1", batch_size=3, max_new_tokens=4), requests)
    grids = [one.facts["grids"] for one in result.samples]
    assert grids == [[3, 2], None, [1, 3]]
    alone = run_workload(workload("v1", max_new_tokens=4), requests)
    assert [one.image_tokens for one in result.samples] == [one.image_tokens for one in alone.samples]
    assert [one.prompt_tokens for one in result.samples] == [one.prompt_tokens for one in alone.samples]
    assert [one.token_ids for one in result.samples] == [one.token_ids for one in alone.samples]
    plain = result.samples[0].to_dict()
    assert json.loads(json.dumps(plain))["new_tokens"] == 4


@pytest.mark.parametrize("bad_place", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_unreadable_samples_are_left_out_by_name(bad_place: int, batch_size: int, tmp_path: Path) -> None:
    requests = samples("v1", tmp_path, 3)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG cut")
    requests.insert(bad_place, Sample("broken", path=broken))
    result = run_workload(workload("v1", batch_size=batch_size, max_new_tokens=3, warmup_rounds=1), requests)
    assert [one.sample.id for one in result.samples] == ["page0", "page1", "page2"]
    assert len(result.problems) == 1
    assert result.problems[0].startswith("broken: ")
    assert str(broken) in result.problems[0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_all_samples_bad_is_an_error(rounds: int, tmp_path: Path) -> None:
    requests = [Sample(f"bad{n}", path=tmp_path / f"absent{n}.png") for n in range(3)]
    with pytest.raises(InputError) as caught:
        run_workload(workload("v1", warmup_rounds=rounds), requests)
    assert [mentions(one, f"bad{n}") for n, one in enumerate(caught.value.data["problems"])] == [True] * 3
    with pytest.raises(InputError, match="no samples"):
        run_workload(workload("v1"), [])


def test_a_callers_error_is_not_taken_for_a_bad_sample(tmp_path: Path) -> None:
    """``on_result`` may fail (full disk): that must surface."""

    def fail(_: SampleResult) -> None:
        raise InputError("cannot write")

    with pytest.raises(InputError, match="cannot write"):
        run_workload(workload("llama", max_new_tokens=2), samples("llama", tmp_path, 2), on_result=fail)


def test_component_path_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("llama"))
    monkeypatch.setattr(engine.adapter, "components", lambda: {"head": "no.such.module"})
    with pytest.raises(ConfigError, match=r"no\.such\.module"):
        engine.run_sample(samples("llama", tmp_path, 1))


def test_threads_are_set(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        engine = Engine(replace(workload("llama"), threads=1))
        assert engine.info().threads == 1
    finally:
        torch.set_num_threads(before)


@given(
    st.integers(1, 4),
    st.lists(st.lists(st.integers(0, 3), min_size=12, max_size=12), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_ngram_ban_equals_transformers(size: int, rows: list[list[int]], length: int) -> None:
    """Against the library's processor, on short alphabets where everything repeats."""
    from transformers import NoRepeatNGramLogitsProcessor

    tokens = torch.tensor(rows)[:, :length]
    logits = torch.arange(5.0).repeat(len(rows), 1)
    expected = NoRepeatNGramLogitsProcessor(size)(tokens, logits.clone()) if length else logits
    assert torch.equal(ban_repeated_ngrams(logits.clone(), tokens, size), expected)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 3))
def test_stop_check_answers_late_but_right(flags: list[bool], lag: int) -> None:
    check = StopCheck(HostProcessor(), lag)
    answers = [check.push(torch.tensor([flag])) for flag in flags]
    assert answers == [False] * min(lag, len(flags)) + flags[: max(0, len(flags) - lag)]


def test_compiled_decode_step_is_one_graph_and_keeps_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured by torch.compile once, in the warm-up; code generation (minutes) is left to a manual run."""
    from torch._dynamo.utils import counters

    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: real(function, backend="eager", **options)
    )
    requests = samples("v1", tmp_path, 2)
    plain = Engine(workload("v1", static=True)).run_sample(requests)[1]
    torch._dynamo.reset()
    counters.clear()
    engine = Engine(workload("v1", static=True, model={"compile": True}))
    engine.warm_up(requests)
    assert counters["stats"]["unique_graphs"] == 1
    compiled = engine.run_sample(requests)[1]
    assert counters["stats"]["unique_graphs"] == 1, "the measured pass must not compile again"
    assert not counters["graph_break"]
    assert compiled.token_ids == plain.token_ids


@pytest.mark.parametrize("kind", ["v1", "qwen_moe"])
def test_compiling_batches_the_experts_of_decode_alone_with_a_note(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a prefill every position would copy its experts' weights: many times slower."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    requests = samples(kind, tmp_path, 2)
    plain = Engine(workload(kind, static=True))
    engine = Engine(workload(kind, static=True, model={"compile": True}))
    seen: dict[str, set[str]] = {"prefill": set(), "decode": set()}

    def watch(name: str, call: Any) -> Any:
        def watched(*args: Any) -> Any:
            seen[name].update(engine.model.get_experts_implementation().values())
            return call(*args)

        return watched

    monkeypatch.setattr(engine.adapter, "prefill", watch("prefill", engine.adapter.prefill))
    monkeypatch.setattr(engine.adapter, "decode_step", watch("decode", engine.adapter.decode_step))
    before = engine.model.get_experts_implementation()
    assert before == plain.model.get_experts_implementation()
    assert engine.run_sample(requests)[1].token_ids == plain.run_sample(requests)[1].token_ids
    assert engine.model.get_experts_implementation() == before, "the next prefill must find its own again"
    assert "batched_mm" in seen["decode"] and "batched_mm" not in seen["prefill"]
    (note,) = engine.adapter.notes()
    assert "batched_mm" in note
    assert plain.adapter.notes() == []


@pytest.mark.parametrize(
    ("kind", "model"),
    [("llama", {"compile": True}), ("qwen_moe", {"compile": True, "experts_implementation": "grouped_mm"})],
)
def test_nothing_is_switched_without_experts_or_against_a_choice(kind: str, model: dict[str, Any]) -> None:
    engine = Engine(workload(kind, static=True, model=model))
    assert engine.adapter.notes() == []
    with engine.adapter.decode_mode(engine.model):
        assert "batched_mm" not in engine.model.get_experts_implementation().values()


def test_what_an_adapter_changed_reaches_the_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    chosen = workload("qwen_moe", static=True, model={"compile": True}, max_new_tokens=2)
    result = run_workload(chosen, samples("qwen_moe", tmp_path, 1))
    assert any("batched_mm" in note for note in result.notes)
    assert (result.workload().cache, result.workload().compiled) == ("static", True)
