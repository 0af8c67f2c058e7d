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


def main(folder: Path) -> None:
    """Run as one rank."""
    from llm_perf_opt.core.ranks import this_rank
    from llm_perf_opt.workloads.rank_group import agreed, enter_group, group_size, leave_group

    rank = this_rank()
    assert rank is not None
    enter_group(rank, "cpu", 60.0)
    result = {"size": group_size(), "agreed": agreed(rank.rank), "tokens": all_tokens(folder)}
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
