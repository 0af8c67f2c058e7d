"""Dimensions that no model can have are found before anything is built, for a plan as for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.checks import wrong_dimensions
from llm_perf_opt.workloads.models.model_types import named_config, preset_names
from tests.text_facts import mentions


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"text_config": {"head_dim": 0}}, "text_config.head_dim"),
        ({"num_key_value_heads": [4, 0]}, "num_key_value_heads"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size"),
        ({"downsample_channels": [512, -1]}, "downsample_channels"),
    ],
)
def test_what_cannot_be_is_named(document: dict[str, Any], key: str) -> None:
    assert [wrong.key for wrong in wrong_dimensions(document)] == [key]


def test_what_can_be_is_left_alone() -> None:
    """Zero heads of a kind that a model has not, windows without end, defaults, lists by layer, texts."""
    sound = {
        "v_head_dim": 0, "q_lora_rank": None, "head_dim": None, "sliding_window_size": -1, "mlp_only_layers": [],
        "num_key_value_heads": [4, 8], "image_size": [224, 336], "pad_token_id": -1, "attention_dropout": 0.0,
        "n_shared_experts": 0, "attn_layers": ["full"],
    }  # fmt: skip
    assert list(wrong_dimensions(sound)) == []
    for name in preset_names():
        assert list(wrong_dimensions(named_config(name))) == []


@pytest.mark.parametrize("switch", [["--plan"], []])
@pytest.mark.parametrize(
    "change", ["hidden_size=-64", "hidden_size=0", "num_attention_heads=0", "vocab_size=-1"]
)
def test_a_plan_refuses_what_a_run_refuses(
    change: str, switch: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ["run", *switch, "model=llama_tiny", f"+model.arch.{change}", f"artifacts.runs_dir={run}"]
    assert main(arguments) == 2
    assert mentions(capsys.readouterr().err, f"model.arch.{change}")
    assert not run.exists()


@pytest.mark.parametrize("switch", [["--plan"], []])
@pytest.mark.parametrize("key", ["model.path", "model.config_name"])
def test_so_it_is_with_a_checkpoint_and_a_named_file(
    key: str, switch: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 0}))
    arguments = [
        "run",
        *switch,
        "model=hf_causal_lm",
        f"{key}={tmp_path / 'made'}",
        f"artifacts.runs_dir={tmp_path / 'run'}",
    ]
    assert main(arguments) == 3
    assert mentions(capsys.readouterr().err, "config.json", "hidden_size", "0")
    assert not (tmp_path / "run").exists()
