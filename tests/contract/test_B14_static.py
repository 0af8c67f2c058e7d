"""B14: ``write_reports``, ``use_analytic_fallback``, ``use_synthetic_inputs``, each with an effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.reporting.render import write_pages
from llm_perf_opt.stages.base import StageContext
from llm_perf_opt.stages.static_analysis import StaticAnalysisStage
from llm_perf_opt.summary import Hardware, RunInfo, Summary, Workload
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter

STATIC_ONLY = ("pipeline.torch_profiler.enable=false", "model.name=test")
KEY = "pipeline.static_analysis"
TEXT = ("model=llama_tiny", "infer.max_new_tokens=8")
MEASURED_AS_SAMPLES = (
    "pipeline.torch_profiler.enable=true",
    "pipeline.static_analysis.use_synthetic_inputs=false",
)


class ReadsValues(HfCausalLmAdapter):
    """A model whose code asks tensors for their values, which the meta device does not have."""

    def static_calls(self, model: Any, shapes: Any) -> Mapping[Any, Callable[[], object]]:
        """Fail as such a model does."""
        import torch

        calls = super().static_calls(model, shapes)

        def reads() -> object:
            return torch.ones(1, device="meta").item()

        return {**calls, "decode": reads}


class CannotBeBuilt(HfCausalLmAdapter):
    """A model that insists on real tensors while it is made."""

    def components(self) -> Mapping[str, str]:
        """Answer without building."""
        return {}

    def build(self, device: str, dtype: Any) -> Any:
        """Fail on the meta device."""
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def run(tmp_path: Path, *overrides: str) -> tuple[StageResult, dict[str, Any], Path]:
    config = compose_config([*STATIC_ONLY, *overrides, f"artifacts.runs_dir={tmp_path}"])
    context = StageContext(config, Artifacts(tmp_path), LogProgress())
    stage = StaticAnalysisStage()
    assert stage.check(context) == []
    result = stage.run(context)
    return result, json.loads(result.artifacts[0].read_text()), tmp_path / "static_analysis"


def pages(root: Path) -> set[str]:
    """Make the pages of a stage's facts, as the end of a run does."""
    hardware = Hardware(None, "unknown", {}, None, "none")
    summary = Summary(RunInfo("run", "ok", "", None, []), {}, hardware, Workload())
    write_pages(summary, [StaticAnalysisStage().facts(root)], root)
    return {path.name for path in (root / "static_analysis").iterdir()}


@pytest.mark.contract("B14")
def test_B14_write_reports(tmp_path: Path) -> None:
    result, document, _ = run(tmp_path / "on", *TEXT)
    assert result.status == "ok"
    assert pages(tmp_path / "on") >= {"static_compute.json", "static_compute.md", "bytes_by_phase.svg"}

    off = run(tmp_path / "off", *TEXT, "pipeline.static_analysis.write_reports=false")
    assert off[0].artifacts == [tmp_path / "off" / "static_analysis" / "static_compute.json"]
    assert pages(tmp_path / "off") == {"static_compute.json"}  # the numbers, and nothing made from them
    assert off[1] == {**document, "has_page": False}


@pytest.mark.contract("B14")
def test_B14_use_analytic_fallback_where_a_phase_cannot_be_counted(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *TEXT)[1]
    assert whole["methods"] == {"prefill": "counted", "decode": "counted"}
    assert whole["cross_checks"]
    assert all(check["agrees"] for check in whole["cross_checks"])

    stubborn = (*TEXT, f"model.adapter={__name__}:ReadsValues")
    result, document, _ = run(tmp_path / "fallback", *stubborn)
    assert result.status == "degraded"
    assert document["methods"] == {"prefill": "counted", "decode": "closed form"}
    assert document["notes"][0].startswith("decode "), "the phase that cannot be counted"
    for key in ("flops", "kv_bytes"):
        assert document["phases"]["decode"][key] == whole["phases"]["decode"][key]
    assert document["totals"]["decode_flops"] == whole["totals"]["decode_flops"]
    assert document["phases"]["decode"]["activation_bytes"] is None

    with pytest.raises(InputError, match=r"^decode ") as caught:
        run(tmp_path / "strict", *stubborn, "pipeline.static_analysis.use_analytic_fallback=false")
    assert "use_analytic_fallback" in (caught.value.hint or "")


@pytest.mark.contract("B14")
def test_B14_use_analytic_fallback_where_a_model_cannot_be_built(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *TEXT)[1]
    result, document, _ = run(tmp_path / "formula", *TEXT, f"model.adapter={__name__}:CannotBeBuilt")
    assert result.status == "degraded"
    assert set(document["methods"].values()) == {"closed form"}
    for phase in ("prefill", "decode"):
        assert document["phases"][phase]["flops"] == whole["phases"][phase]["flops"]
    assert document["kv_bytes_per_token"] == whole["kv_bytes_per_token"]
    norms = whole["params"]["total"] - document["params"]["total"]
    assert 0 < norms < whole["params"]["total"] / 100
    off = "pipeline.static_analysis.use_analytic_fallback=false"
    with pytest.raises(InputError, match="cannot be built"):
        run(tmp_path / "strict", *TEXT, f"model.adapter={__name__}:CannotBeBuilt", off)


@pytest.mark.contract("B14")
def test_B14_without_fallback_nothing_is_cross_checked(tmp_path: Path) -> None:
    document = run(tmp_path, *TEXT, "pipeline.static_analysis.use_analytic_fallback=false")[1]
    assert document["cross_checks"] == []


@pytest.mark.contract("B14")
def test_B14_use_synthetic_inputs_does_not_touch_the_data_set(tmp_path: Path) -> None:
    absent = (*TEXT, f"dataset.prompts_file={tmp_path / 'absent.txt'}")
    document = run(tmp_path / "synthetic", *absent, "pipeline.static_analysis.prompt_tokens=77")[1]
    assert [shape["prompt_tokens"] for shape in document["shapes"]] == [77]
    assert document["shapes"][0]["source"] == "configured"
    with pytest.raises(LlmPerfError):
        run(tmp_path / "real", *absent, "pipeline.static_analysis.use_synthetic_inputs=false")


@pytest.mark.contract("B14")
def test_B14_real_samples_decide_the_shapes(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two three\none two three\n" + "a much longer prompt " * 9 + "\n")
    real = ("pipeline.static_analysis.use_synthetic_inputs=false", f"dataset.prompts_file={prompts}")
    document = run(tmp_path / "real", *TEXT, *real)[1]
    shapes = document["shapes"]
    assert {shape["source"] for shape in shapes} == {"samples"}
    assert sorted(shape["weight"] for shape in shapes) == [1, 2]
    each = {}
    for shape in shapes:
        tokens = shape["prompt_tokens"]
        one = run(tmp_path / f"at{tokens}", *TEXT, f"pipeline.static_analysis.prompt_tokens={tokens}")[1]
        each[tokens] = (one["phases"]["prefill"]["flops"], shape["weight"])
    mean = sum(flops * weight for flops, weight in each.values()) / 3
    assert document["phases"]["prefill"]["flops"] == pytest.approx(mean)
    capped = run(tmp_path / "capped", *TEXT, *real, "pipeline.static_analysis.max_shapes=1")[1]
    assert len(capped["shapes"]) == 1
    assert any("represented" in note for note in capped["notes"])


@pytest.mark.contract("B14")
def test_B14_pages_decide_the_grids(tmp_path: Path) -> None:
    overrides = (
        "infer.mode=gundam",
        "dataset.generated.pages=1",
        f"dataset.generated.cache_dir={tmp_path / 'c'}",
    )
    document = run(tmp_path / "run", *overrides, "pipeline.static_analysis.use_synthetic_inputs=false")[1]
    assert document["shapes"][0]["vision"]["grids"] != [None]
    assert all(check["agrees"] for check in document["cross_checks"])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("pipeline.static_analysis.grid=[2]",), "columns, rows"),
        (("pipeline.static_analysis.batch_size=0",), "below 1"),
        (
            ("pipeline.static_analysis.text_tokens=5", "pipeline.static_analysis.prompt_tokens=900"),
            "both given",
        ),
        (
            (
                "pipeline.static_analysis.use_synthetic_inputs=false",
                "pipeline.static_analysis.prompt_tokens=9",
            ),
            "use_synthetic_inputs=false",
        ),
    ],
)
def test_contradictory_overrides_are_found_before_any_work(
    tmp_path: Path, overrides: tuple[str, ...], expected: str
) -> None:
    config = compose_config([*STATIC_ONLY, *overrides, f"artifacts.runs_dir={tmp_path}"])
    problems = StaticAnalysisStage().check(StageContext(config, Artifacts(tmp_path), LogProgress()))
    assert [problem.severity for problem in problems] == ["error"]
    assert expected in problems[0].message
    assert problems[0].key is not None
    assert problems[0].key.startswith("pipeline.static_analysis.")


@pytest.mark.parametrize(
    ("overrides", "key", "fact"),
    [
        (("infer.mode=base", f"{KEY}.grid=[2,3]"), f"{KEY}.grid", "infer.mode=base"),
        (("infer.mode=gundam", f"{KEY}.grid=[4,3]"), f"{KEY}.grid", r"\b12\b.*infer\.max_tiles.*\b9\b"),
        (("infer.mode=base", f"{KEY}.prompt_tokens=100"), f"{KEY}.prompt_tokens", r"=100\b.*\b273\b"),
        (
            ("infer.mode=tiny", f"{KEY}.context_tokens=100000"),
            f"{KEY}.context_tokens",
            r"\b100001\b.*\b8192\b",
        ),
        ((*TEXT, f"{KEY}.grid=[2,3]"), f"{KEY}.grid", "hf_causal_lm"),
        ((*TEXT, f"{KEY}.decode_tokens=1000000"), f"{KEY}.context_tokens", r"\b1000512\b.*\b4096\b"),
        (
            ("model.adapter=hf_causal_lm", "model.arch={model_type: lama}"),
            "model.arch.model_type",
            "'lama'",
        ),
    ],
)
def test_shapes_a_model_cannot_have_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], key: str, fact: str
) -> None:
    with pytest.raises(ConfigError, match=fact) as refused:
        run(tmp_path, *overrides)
    assert refused.value.data["key"] == key


def test_the_natural_command_reproduces_published_counts(tmp_path: Path) -> None:
    """Vision 4.63 T, prefill with vision 6.12 T, 100 decode steps 122.6 G: 3 × 3 tiles, 10 tokens of text."""
    document = run(
        tmp_path,
        "model/deepseek_ocr/arch@model=deepseek_ocr.default",
        "infer.mode=gundam",
        "pipeline.static_analysis.grid=[3,3]",
        "pipeline.static_analysis.text_tokens=10",
        "pipeline.static_analysis.decode_tokens=100",
        "pipeline.static_analysis.head_positions=all",
        "pipeline.static_analysis.rotary=per_layer",
    )[1]
    assert document["totals"] == {
        "vision_flops": 4_633_315_573_760,
        "encode_flops": None,
        "prefill_flops": 6_116_473_691_648 - 4_633_315_573_760,
        "prefill_including_vision_flops": 6_116_473_691_648,
        "decode_steps": 100,
        "decode_flops": 122_582_169_600,
        "request_flops": 6_116_473_691_648 + 122_582_169_600,
        "kv_prefill_bytes": 1213 * 61_440,
    }
    assert document["model"]["dtype"] == "bfloat16"


def test_an_architecture_without_closed_form_is_counted_with_a_note(tmp_path: Path) -> None:
    arch = (
        "{model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, vocab_size: 128, n_positions: 128,"
        " bos_token_id: 1, eos_token_id: 2}"
    )
    result, document, _ = run(
        tmp_path,
        *TEXT,
        "model.config_name=null",
        f"model.arch={arch}",
        "pipeline.static_analysis.prompt_tokens=32",
    )
    assert result.status == "ok"
    assert any("closed form" in note and "'gpt2'" in note for note in document["notes"])
    weights = 12 * 64 * 64
    expected = 2 * (2 * 32 * weights + 4 * 32 * 32 * 64) + 2 * 64 * 128
    assert document["phases"]["prefill"]["flops"] == expected


@pytest.mark.parametrize(
    ("other", "models"),
    [("infer.batch_size=1", 1), ("pipeline.static_analysis.batch_size=2", 2)],
)
def test_one_model_serves_both_sets_of_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, models: int
) -> None:
    """The document at the samples' shapes is the one that a model built anew gives."""
    made: list[StaticCounter] = []
    make = StaticCounter.__init__

    def counting(self: StaticCounter, *given: Any, **named: Any) -> None:
        made.append(self)
        make(self, *given, **named)

    monkeypatch.setattr(StaticCounter, "__init__", counting)
    folder = run(tmp_path / "both", *TEXT, other, "pipeline.torch_profiler.enable=true")[2]
    assert len(made) == models
    alone = run(tmp_path / "alone", *TEXT, *MEASURED_AS_SAMPLES)[1]
    assert json.loads((folder / "static_run.json").read_text())["phases"] == alone["phases"]
