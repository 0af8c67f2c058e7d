"""Models of a short context: default shapes and made-up prompts leave room for the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core import layout
from llm_perf_opt.stages.static_analysis import analyse
from llm_perf_opt.workloads.counting.shapes import StaticAnalysisConfig, steps_within
from llm_perf_opt.workloads.registry import load_adapter, load_dataset
from tests.support import read_json


def overrides(limit: int, new_tokens: int = 128) -> list[str]:
    return [
        "model=llama_tiny",
        f"+model.arch.max_position_embeddings={limit}",
        f"infer.max_new_tokens={new_tokens}",
    ]


@pytest.mark.parametrize("limit", [16, 64, 128, 256, 512, 1024])
def test_static_analysis_counts_at_its_default_shapes(limit: int) -> None:
    config = compose_config(overrides(limit))
    stage = config.pipeline["static_analysis"]
    assert isinstance(stage, StaticAnalysisConfig)
    (shapes,) = analyse(config, stage).shapes
    assert 1 <= shapes.prompt_tokens <= 512
    assert shapes.prompt_tokens + shapes.decode_tokens <= limit
    assert shapes.context_tokens < limit


def test_a_length_somebody_chose_is_not_shortened() -> None:
    config = compose_config([*overrides(64), "dataset.synthetic_tokens=100"])
    adapter = load_adapter(config.model, config.infer)
    (first, _) = load_dataset(config.dataset).samples()
    assert len(adapter.prompt_ids(first)) == 100  # type: ignore[attr-defined]
    config = compose_config(overrides(64))
    (first, _) = load_dataset(config.dataset).samples()
    assert len(adapter.prompt_ids(first)) == 32  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wanted", "prompt", "limit", "steps"), [(9, 4, None, 9), (9, 4, 8, 4), (9, 8, 8, 1)]
)
def test_an_answer_ends_where_the_context_is_full(
    wanted: int, prompt: int, limit: int | None, steps: int
) -> None:
    assert steps_within(wanted, prompt, limit) == steps


def test_a_whole_run_at_a_short_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["infer.warmup_rounds=0", "run.repeats=1", "hardware.probe=false", "artifacts.runs_dir=r", "-q"]
    assert main(["run", *overrides(24, 16), *quick, "dataset.sampling.num_samples_per_epoch=1"]) == 0
    (sample,) = read_json(tmp_path / "r" / "torch_profiler" / "timings.json")["samples"]
    assert sample["prompt_tokens"] + sample["new_tokens"] <= 24
    assert (tmp_path / "r" / "static_analysis" / layout.STATIC_AT_RUN_SHAPES).is_file()
