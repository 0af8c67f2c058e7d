"""One rank of the tensor-parallel tests: prints its greedy tokens of every family, built and loaded, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def families() -> dict[str, tuple[Any, Any]]:
    """Return the classes and configurations of the families that are split."""
    import transformers

    return {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL)),
        "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**SMALL, head_dim=16)),
        "tied": (
            transformers.LlamaForCausalLM,
            transformers.LlamaConfig(**{**SMALL, "tie_word_embeddings": True}),
        ),
        "qwen3_moe": (
            transformers.Qwen3MoeForCausalLM,
            transformers.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=16),
        ),
    }


def greedy_tokens(model: Any) -> list[int]:
    """Return what the model goes on with."""
    import torch

    ids = torch.arange(10)[None]
    with torch.no_grad():
        return list(model.generate(ids, max_new_tokens=8, do_sample=False)[0, 10:].tolist())


def all_tokens(folder: Path) -> dict[str, list[int]]:
    """Return the tokens of every family: with random weights, and loaded from a checkpoint below ``folder``."""
    import torch

    from llm_perf_opt.workloads.models.loading import build_random, load_pretrained

    found: dict[str, list[int]] = {}
    for name, (kind, config) in families().items():
        found[name] = greedy_tokens(build_random(kind, config, torch.float32, "cpu", 0, {}))
        loaded = load_pretrained(kind, str(folder / name), config, torch.float32, "cpu", {})
        found[f"{name} loaded"] = greedy_tokens(loaded)
    return found


KINDS = ("tensor", "tensor+expert")


def split_families() -> list[tuple[str, tuple[Any, Any]]]:
    """Return the families whose parts are looked at: also sizes that two ranks cannot share evenly, and biases."""
    import transformers

    odd = {**SMALL, "vocab_size": 255, "intermediate_size": 129}
    return [
        *families().items(),
        ("odd", (transformers.LlamaForCausalLM, transformers.LlamaConfig(**odd))),
        (
            "biased",
            (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**SMALL)),
        ),
    ]


def held(kind: Any, config: Any, split: str) -> dict[str, int] | None:
    """Return how many elements of every parameter this rank holds once transformers has split the model."""
    import torch
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    from llm_perf_opt.workloads.models import weights

    if split == "tensor+expert" and not getattr(config, "base_model_ep_plan", None):
        return None
    model = kind._from_config(config, dtype=torch.float32)
    if split == "tensor":
        model = weights.split(model)
    else:
        requested = DistributedConfig(tp_plan="auto", tp_size=2, ep_size=2)
        settled, _, mesh = kind.prepare_distribute_model(requested)
        model = kind.maybe_distribute_model(model, settled, mesh)
    return {
        name: (one.to_local() if isinstance(one, DTensor) else one).numel()
        for name, one in model.named_parameters()
    }


def main(folder: Path) -> None:
    """Run as one rank."""
    from llm_perf_opt.core.ranks import this_rank
    from llm_perf_opt.workloads.rank_group import agreed, enter_group, group_size, leave_group

    rank = this_rank()
    assert rank is not None
    enter_group(rank, "cpu", 60.0)
    result = {
        "size": group_size(),
        "agreed": agreed(rank.rank),
        "tokens": all_tokens(folder),
        "held": {f"{name} {kind}": held(*one, kind) for name, one in split_families() for kind in KINDS},
    }
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
