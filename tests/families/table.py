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
        "| family | runs | tokens | parameters | FLOPs | cache | static | remark |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        marks = (row.runs, row.tokens, row.parameters, row.flops, row.cache, row.static)
        remark = "" if row.exact() else row.remark.replace("|", "\\|")[:_MOST_REMARK]
        lines.append(f"| `{row.family}` | {' | '.join(_MARK[mark] for mark in marks)} | {remark} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], towers: Sequence[Row]) -> str:
    """Return the page ``docs/model-families.md``: decoders, and families with an encoder before the prefill."""
    import torch
    import transformers

    return f"""# Model families

<!-- Made by scripts/family-matrix.py --write: do not edit. -->

Families of transformers {transformers.__version__}, at a tiny size with random weights in float32 on a CPU
(torch {torch.__version__.partition("+")[0]}), against transformers' own `generate()` and torch's own counter.

- **tokens**: {NEW_TOKENS} tokens equal `generate()`'s, for one request and for a padded batch of two (`rwkv`: one request, since its batches
  are refused; `xlstm`: equal lengths only, since it takes no mask; `whisper`: every sound is filled up to one length).
- **parameters**: the static model's total equals that of the model that ran.
- **FLOPs**: every phase, counted without weights, equals torch's `FlopCounterMode` on the real model, to the last digit: prefill (of
  {PROMPT_TOKENS} tokens for decoders) and the decode step after it; the vision tower or the encoder where there is one.
- **cache**: bytes after the prompt equal those of all tensors the real cache holds: keys and values, recurrent and convolution states,
  indexer keys, an encoder's keys and values.
- **static**: with `model.cache=static`, the same tokens; –: refused before any work, because transformers has no such cache for the family
  or gives other tokens with it.

Every prompt is longer than the attention windows and chunks of its family.

`model=CHECKPOINT_DIRECTORY` chooses the adapter by `config.json`. Encoders (BERT, ViT, CLIP), audio language models and whatever
else cannot run are refused before any work, with the reason.

## Vision-language models and encoder-decoders

{_counted(towers)} of {len(towers)}. Vision-language models run through their checkpoint's own processor and chat template in the phases
vision, prefill and decode (`model=hf_image_text_to_text`); every other family that `AutoModelForImageTextToText` knows and that takes encoded
images runs by the same code, tried or not: at run time, its first tokens are checked against `generate()`. Encoder-decoders run
in the phases encode, prefill and decode (`model=hf_seq2seq`, `model=hf_speech_seq2seq`); the prefill is that of the decoder's prompt.

Where torchvision is not installed, processors that also read videos are used without that half. SmolVLM's own processor
needs the package num2words.

{table(towers)}

## Decoders

Every family that `AutoModelForCausalLM` knows: {_counted(rows)} of {len(rows)}. Refused families stop before any work with the reason given.
"Not tried" are those whose vision or audio tower stays large here, or whose configuration refuses the sizes this table tries.

{table(rows)}
"""


def _counted(rows: Sequence[Row]) -> str:
    kinds = Counter(row.verdict() for row in rows)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
