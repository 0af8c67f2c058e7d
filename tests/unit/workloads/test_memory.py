"""A model that does not fit is told before it is loaded, with what would fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.config.schema import Dtype
from llm_perf_opt.runs.app import prepare
from llm_perf_opt.workloads import memory_estimate
from llm_perf_opt.workloads.memory_estimate import available_bytes, memory_need, memory_problems
from tests.text_facts import mentions

GIB = 1 << 30


def with_memory(monkeypatch: pytest.MonkeyPatch, gib: float | None) -> None:
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda _: None if gib is None else int(gib * GIB))


@pytest.mark.parametrize(
    ("preset", "params"),
    [("llama3_8b", 8.03e9), ("llama3_70b", 70.6e9), ("qwen3_30b_a3b", 30.5e9), ("deepseek_ocr", 3.34e9)],
)
def test_the_weights_are_those_of_the_published_model(preset: str, params: float) -> None:
    need = memory_need(compose_config([f"model={preset}"]), Dtype.bfloat16)
    assert need is not None
    assert need.weights == pytest.approx(2 * params, rel=0.03)
    assert 0 < need.activations < need.weights
    assert need.total == need.weights + need.cache + need.activations


def test_the_cache_grows_with_batch_and_length() -> None:
    small, large = (
        memory_need(compose_config(["model=llama3_8b", *more]), Dtype.bfloat16)
        for more in (
            ["dataset.synthetic_tokens=896"],
            ["infer.batch_size=8", "dataset.synthetic_tokens=1920"],
        )
    )
    assert small is not None and large is not None
    # 32 layers, 8 heads of 128, keys and values, 2 bytes: 128 KiB a token; 128 new tokens beside the prompt
    assert small.cache == (896 + 128) * 128 * 1024
    assert large.cache == 8 * 2 * small.cache


def test_weights_that_do_not_fit_skip_the_stage_and_name_a_smaller_data_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_memory(monkeypatch, 24)
    (problem,) = memory_problems(compose_config(["model=llama3_8b", "run.device=cpu"]), "torch_profiler")
    assert problem.severity == "skip"
    assert mentions(problem.message, "29.9 GiB", "float32", "24.0 GiB")
    assert problem.fix.startswith("model.dtype=bfloat16 (15.")
    assert "pipeline.torch_profiler.enable=false" in problem.fix


def test_what_hardly_fits_runs_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 30)
    (problem,) = memory_problems(compose_config(["model=llama3_8b"]), "direct_inference")
    assert problem.severity == "degraded"
    with_memory(monkeypatch, 10)
    (problem,) = memory_problems(compose_config(["model=llama3_70b"]), "direct_inference")
    assert "dtype" not in problem.fix  # none of them would help


@pytest.mark.parametrize("arguments", [[], ["model=llama3_8b", "model.dtype=bfloat16"], ["model=llama_tiny"]])
def test_what_fits_is_no_problem(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 24)
    assert memory_problems(compose_config(arguments), "torch_profiler") == []


def test_nothing_is_reported_without_knowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, None)
    assert memory_problems(compose_config(["model=llama3_70b"]), "nsys") == []
    with_memory(monkeypatch, 0.001)
    unknown = ["model=hf_causal_lm", "model.arch.model_type=gpt2"]
    assert (
        memory_problems(compose_config([f"+{word}" if "arch" in word else word for word in unknown]), "nsys")
        == []
    )
    own = compose_config(["model=llama3_70b", "pipeline.workload.command=[/bin/true]"])
    assert memory_problems(own, "nsys") == []


def test_the_host_has_some_memory() -> None:
    found = available_bytes("cpu")
    assert found is None or GIB // 64 < found < 1 << 50
    assert available_bytes("cuda:63") is None


def test_every_stage_that_loads_the_model_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with_memory(monkeypatch, 1)
    from llm_perf_opt.runs.app import plan_of

    stages = ("torch_profiler", "direct_inference")
    on = [f"pipeline.{name}.enable=true" for name in stages]
    plan = plan_of(prepare(["model=llama3_8b", *on], config_dir=None, config_name="config"))
    skipped = {stage["stage"]: stage["skipped"] for stage in plan["stages"]}
    assert skipped == {"static_analysis": False, "torch_profiler": True, "direct_inference": True}
