"""Models split over two real gloo ranks write what the whole model writes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_perf_opt.analysis.static.split import elements_held
from llm_perf_opt.workloads.counting.counter import model_tree
from llm_perf_opt.workloads.models.loading import build_meta, build_random
from llm_perf_opt.workloads.models.weights import plans_of, reason_not_split
from llm_perf_opt.workloads.rank_group import agreed, group_size, in_group
from tests.support import REPOSITORY
from tests.text_facts import mentions
from tests.unit.workloads.models import rank_program
from tests.warm import warm_server


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list[dict]]:
    """Tokens of the whole models, and what each of two ranks said."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, (kind, config) in rank_program.families().items():
        build_random(kind, config, torch.float32, "cpu", 1, {}).save_pretrained(folder / name)
    alone = rank_program.all_tokens(folder)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [warm_server().stand_in, *torchrun, str(Path(rank_program.__file__)), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return alone, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_ranks_write_the_tokens_of_one_process(both: tuple[dict, list[dict]]) -> None:
    alone, ranks = both
    assert len(alone) == 8
    for name in ("llama", "qwen3_moe"):
        assert alone[name] != alone[f"{name} loaded"], "other weights must give other tokens"
    assert [one["tokens"] for one in ranks] == [alone, alone]


def test_rank_0_decides_for_all(both: tuple[dict, list[dict]]) -> None:
    assert [(one["size"], one["agreed"]) for one in both[1]] == [(2, 0), (2, 0)]


@pytest.mark.parametrize("kind", rank_program.KINDS)
@pytest.mark.parametrize("name", [name for name, _ in rank_program.split_families()])
def test_a_rank_stores_what_the_static_model_predicts(
    name: str, kind: Any, both: tuple[dict, list[dict]]
) -> None:
    """Every parameter of every rank, exactly: built by transformers on two ranks, and by the rules of the static analysis."""
    family, config = dict(rank_program.split_families())[name]
    real = [one["held"][f"{name} {kind}"] for one in both[1]]
    if real[0] is None:
        assert kind == "tensor+expert" and not config.base_model_ep_plan
        return
    model = build_meta(family, config, torch.float32, {})
    plans = plans_of(model)
    assert plans is not None
    tree = model_tree(model, {})
    for rank, own in enumerate(real):
        rules = plans.of(kind)
        assert own == {p.name: elements_held(p, rules, 2, rank) for p in tree.params}
    assert sum(real[0].values()) < sum(param.numel for param in tree.params)


def test_outside_of_a_group_nothing_is_agreed_on() -> None:
    assert (in_group(), group_size(), agreed("mine")) == (False, 1, "mine")


@pytest.mark.parametrize(
    ("config", "ranks", "facts"),
    [
        (
            {"base_model_tp_plan": {"x": "colwise"}, "num_attention_heads": 4, "num_key_value_heads": 2},
            2,
            None,
        ),
        ({"num_attention_heads": 4}, 2, ["'toy'"]),
        (
            {"base_model_tp_plan": {"x": "colwise"}, "num_attention_heads": 4, "num_key_value_heads": 2},
            4,
            ["num_key_value_heads=2", "4"],
        ),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_with_the_reason(
    config: dict, ranks: int, facts: list[str] | None
) -> None:
    found = reason_not_split(SimpleNamespace(model_type="toy", **config), ranks)
    assert found is None if facts is None else mentions(found, *facts)


def test_only_text_decoders_are_split() -> None:
    from llm_perf_opt.config.schema import InferConfig, ModelConfig
    from llm_perf_opt.workloads.registry import load_adapter

    reasons = {}
    for name, preset in (("hf_causal_lm", "llama_tiny"), ("hf_seq2seq", "t5_small")):
        adapter = load_adapter(ModelConfig(adapter=name, config_name=preset, arch={}), InferConfig())
        reasons[name] = adapter.why_not_split(2)
    assert reasons["hf_causal_lm"] is None
    assert "hf_seq2seq" in str(reasons["hf_seq2seq"])
