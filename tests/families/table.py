"""The matrix of families as a table and as a page of the docs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.families.check import NEW_TOKENS, PROMPT_TOKENS, Row

_MARK = {True: "yes", False: "**no**", None: "–"}
_MOST_REMARK = 150


def all_families() -> list[str]:
    """Return every model type that transformers' ``AutoModelForCausalLM`` knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, one line per family."""
    lines = [
        "| family | runs | tokens | parameters | FLOPs | cache | remark |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        marks = (row.runs, row.tokens, row.parameters, row.flops, row.cache)
        remark = "" if row.exact() else row.remark.replace("|", "\\|")[:_MOST_REMARK]
        lines.append(f"| `{row.family}` | {' | '.join(_MARK[mark] for mark in marks)} | {remark} |")
    return "\n".join(lines)


def page(rows: Sequence[Row]) -> str:
    """Return the page ``docs/model-families.md``."""
    import torch
    import transformers

    kinds = Counter(row.verdict() for row in rows)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return f"""# Model families

<!-- Made by scripts/family-matrix.py --write: do not edit. -->

Every family of transformers {transformers.__version__} that `AutoModelForCausalLM` knows, at a tiny size with random weights in
float32 on a CPU (torch {torch.__version__.partition("+")[0]}): {counted} of {len(rows)}.

- **tokens**: {NEW_TOKENS} tokens equal `generate()`'s, for one request and for a padded batch of two (`rwkv`: one request, since its batches
  are refused; `xlstm`: equal lengths only, since it takes no mask).
- **parameters**: the static model's total equals that of the model that ran.
- **FLOPs**: prefill of {PROMPT_TOKENS} tokens and the decode step after it, counted without weights, equal torch's `FlopCounterMode` on the
  real model, to the last digit.
- **cache**: bytes after the prompt equal those of all tensors the real cache holds: keys and values, recurrent and convolution states,
  indexer keys.

Refused families stop before any work with the reason given. "Not tried" are those whose vision or audio tower stays large here, or whose configuration refuses the sizes this table tries.

{table(rows)}
"""
