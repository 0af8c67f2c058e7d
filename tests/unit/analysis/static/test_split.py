"""A model over several ranks by static analysis. What transformers really splits is tested in test_tensor_parallel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.analysis.static.quantised import forget_weights_of_ranks
from llm_perf_opt.analysis.static.split import Counted, Plans, split_model
from llm_perf_opt.workloads.models.weights import plans_of
from tests.text_facts import mentions
from tests.unit.static_support import (
    BATCH,
    CONTEXT,
    PROMPT,
    count_text,
    meta_model,
    model_tree,
    small_config,
)

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
HIDDEN, LAYERS, VOCABULARY, ELEMENT = 64, 3, 128, 2
KV = 2.0 * LAYERS * 2 * 16 * ELEMENT


def counted(kind: str, **changes: Any) -> tuple[Counted, Plans]:
    model = meta_model(small_config(kind, **changes))
    tree = model_tree(model, {})
    counts = {
        "prefill": count_text(model, tree, tokens=PROMPT, cached=0),
        "decode": count_text(model, tree, tokens=1, cached=CONTEXT),
    }
    plans = plans_of(model)
    assert plans is not None
    return Counted(tree, counts, KV, ELEMENT, "full"), plans


@pytest.fixture(scope="module")
def llama() -> tuple[Counted, Plans]:
    return counted("llama")


@pytest.fixture(scope="module")
def experts() -> tuple[Counted, Plans]:
    return counted("qwen3_moe", head_dim=16, **EXPERTS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_has_its_part_and_the_norms(llama: tuple[Counted, Plans], ranks: int) -> None:
    found = split_model(*llama, ranks, "tensor")
    whole, norms = llama[0].tree.weight_bytes(), (2 * LAYERS + 1) * HIDDEN * ELEMENT
    assert found.reason is None
    assert found.replicated_bytes == norms
    assert [share.weight_bytes for share in found.shares] == [(whole - norms) / ranks + norms] * ranks
    assert {share.kv_bytes_per_token for share in found.shares} == {KV / ranks}
    # A step reads everything but the table of embeddings, of which a rank looks up its part of the rows.
    table, rows = VOCABULARY * HIDDEN * ELEMENT, BATCH * HIDDEN * ELEMENT
    assert found.read_bytes["decode"] == (whole - norms - table + rows) / ranks + norms


def test_collectives_of_ranks_follow_from_the_plan(llama: tuple[Counted, Plans]) -> None:
    found = split_model(*llama, 2, "tensor")
    text = {(one.phase, one.name): one for one in found.exchanges}
    # The embedding, and attention and MLP of every layer; the head's outputs are gathered.
    for phase, positions in (("prefill", BATCH * PROMPT), ("decode", BATCH)):
        summed = text[phase, "all_reduce"]
        assert (summed.calls, summed.follows) == (1 + 2 * LAYERS, "positions")
        assert summed.bytes == summed.link_bytes == (1 + 2 * LAYERS) * positions * HIDDEN * ELEMENT
    gathered = text["decode", "all_gather"]
    assert (gathered.calls, gathered.bytes) == (1, BATCH * VOCABULARY * ELEMENT)
    assert (gathered.link_bytes, gathered.follows) == (gathered.bytes / 2, "sequences")


def test_experts_are_cut_or_shared_out(experts: tuple[Counted, Plans]) -> None:
    cut, whole = (split_model(*experts, 2, kind) for kind in ("tensor", "tensor+expert"))
    assert cut.shares[0].params == whole.shares[0].params
    assert (cut.shares[0].experts, whole.shares[0].experts) == (None, 4)
    assert {one.name for one in cut.exchanges} == {"all_reduce", "all_gather"}
    sent = next(one for one in whole.exchanges if (one.phase, one.name) == ("decode", "all_to_all"))
    # A rank has half of the tokens; each goes to two experts and comes back, in every layer.
    assert (sent.calls, sent.bytes) == (2 * LAYERS, 2 * LAYERS * BATCH / 2 * 2 * HIDDEN * ELEMENT)
    assert sent.link_bytes == sent.bytes / 2
    summed = next(one for one in whole.exchanges if (one.phase, one.name) == ("decode", "all_reduce"))
    assert summed.calls == 1 + LAYERS, "experts no longer leave partial sums"


def test_more_ranks_than_experts_is_reported(experts: tuple[Counted, Plans]) -> None:
    reason = split_model(*experts, 3, "tensor+expert").reason
    assert mentions(reason, "8", "experts", "3")


@pytest.mark.parametrize(
    ("rule", "style"),
    [("model.layers.*.mlp.down_proj", "diagonal"), ("model.layers.*.mlp", "all_reduce")],
)
def test_what_is_not_known_is_reported_and_not_guessed(
    llama: tuple[Counted, Plans], rule: str, style: str
) -> None:
    model, plans = llama
    found = split_model(model, replace(plans, tensor={**plans.tensor, rule: style}), 2, "tensor")
    assert found.reason is not None and rule in found.reason and mentions(found.reason, f"'{style}'")
    assert (found.shares, found.exchanges) == ([], [])


def test_sizes_that_are_not_known_are_not_zero(llama: tuple[Counted, Plans]) -> None:
    model, plans = llama
    found = split_model(replace(model, kv_bytes_per_token=None), plans, 2, "tensor")
    forget_weights_of_ranks([found])
    assert (found.shares[0].weight_bytes, found.shares[0].kv_bytes_per_token) == (None, None)
    assert (found.replicated_bytes, found.read_bytes) == (None, {})
    assert found.shares[0].params > 0
