"""Families with an encoder before the prefill (vision towers, encoder-decoders): the same comparisons as for decoders."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from llm_perf_opt.config.schema import (
    CacheKind,
    DatasetConfig,
    Dtype,
    GeneratedAudioConfig,
    InferConfig,
    ModelConfig,
    Weights,
)
from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.datasets.audio import made_up_samples
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.registry import load_adapter
from tests.families.check import NEW_TOKENS, Row, cache_bytes, longest_window, real_flops
from tests.families.vision import RECIPES, make_checkpoint

_PAGE_SIZES = ((70, 90), (110, 90))
_PROMPTS = ("Free OCR.", "Describe this image in detail.")


def tower_families() -> list[str]:
    """Return the families this module can make: those that see, then encoder-decoders."""
    return [*RECIPES, *_ENCODER_DECODERS]


def check_tower_family(family: str) -> Row:
    """Check one of them in a folder of its own."""
    if family in _ENCODER_DECODERS:
        return check_encoder_decoder(family)
    with tempfile.TemporaryDirectory(prefix="tiny-checkpoint-") as folder:
        return check_vision_family(family, Path(folder))


def check_vision_family(family: str, folder: Path) -> Row:
    """Run one vision-language family at a tiny size and compare everything that can be compared."""
    path = make_checkpoint(family, folder / family)
    model = ModelConfig(
        adapter="hf_image_text_to_text",
        path=str(path),
        name=family,
        weights=Weights.random,
        dtype=Dtype.float32,
    )
    return check_row(family, model, pages(folder))


def pages(folder: Path) -> list[Sample]:
    """Write two images of noise whose sizes differ."""
    found = []
    for number, (size, prompt) in enumerate(zip(_PAGE_SIZES, _PROMPTS, strict=True)):
        noise = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(number))
        file = folder / f"page{number}.png"
        Image.fromarray(noise.to(torch.uint8).numpy()).save(file)
        found.append(Sample(f"page{number}", prompt, file))
    return found


def check_row(family: str, model: ModelConfig, requests: Sequence[Sample]) -> Row:
    """Compare tokens, parameters, FLOPs and cache of one configuration over these requests."""
    row = Row(family)
    infer = InferConfig(max_new_tokens=NEW_TOKENS, warmup_rounds=0, ignore_eos=True, batch_size=len(requests))
    try:
        engine = Engine(WorkloadConfig(model, infer, DatasetConfig(), "cpu", 1, NEW_TOKENS))
    except LlmPerfError as error:
        row.remark = f"refused: {error.message}"
        return row
    window, prompt = longest_window(engine.model.config), engine.prepare(requests).prompt_tokens
    if window >= prompt:
        row.remark = f"not tried: its window of {window} tokens is not shorter than the prompt of {prompt}"
        return row
    row.tokens = all(_equals_generate(engine, batch) for batch in (requests[:1], requests))
    row.runs = True
    _compare_counts(engine, requests, row)
    try:
        static = dataclasses.replace(model, cache=CacheKind.static)
        engine = Engine(WorkloadConfig(static, infer, DatasetConfig(), "cpu", 1, NEW_TOKENS))
    except ConfigError as error:
        row.remark += f" static cache refused: {error.message}"
        return row
    row.static = all(_equals_generate(engine, batch) for batch in (requests[:1], requests))
    return row


def _equals_generate(engine: Engine, requests: Sequence[Sample]) -> bool:
    ours = engine.run_sample(requests)[1].token_ids
    reference = engine.reference(requests, NEW_TOKENS)
    return reference is not None and ours == reference.token_ids


def _compare_counts(engine: Engine, requests: Sequence[Sample], row: Row) -> None:
    adapter, model = engine.adapter, engine.model
    batch = engine.prepare(requests)
    shapes = adapter.shapes(batch, batch.prompt_tokens)
    counter = StaticCounter(load_adapter(engine.workload.model, engine.workload.infer), torch.float32)
    counted = {phase: counter.count(phase, shapes) for phase in adapter.phases}
    document = counter.document(shapes, decode_steps=2)
    row.parameters = document.static.params.total == sum(p.numel() for p in model.parameters())
    ours = {phase: count.raw_flops() if count is not None else None for phase, count in counted.items()}
    real, held = _run_phases(adapter, model, batch)
    row.flops = ours == real
    if not row.flops:
        row.remark += f" FLOPs {ours} for {real};"
    row.cache = document.totals.kv_prefill_bytes == held
    if not row.cache:
        row.remark += f" cache {document.totals.kv_prefill_bytes} for {held} bytes;"
    if not row.exact():
        row.remark += " " + "; ".join(document.notes)


def _run_phases(adapter: Any, model: Any, batch: Any) -> tuple[dict[str, int], int]:
    """Run every phase once under torch's own counter; return its FLOPs and the bytes the cache holds after the prompt."""
    kept: dict[str, Any] = {}

    def keep(name: str, call: Callable[[], Any]) -> Callable[[], None]:
        return lambda: kept.update({name: call()})

    with torch.no_grad():
        cache = adapter.make_cache(model, batch, NEW_TOKENS)
        first = adapter.phases[0]
        encode = adapter.vision if first == "vision" else adapter.encode
        real = {first: real_flops(keep("features", lambda: encode(model, batch)))}
        real["prefill"] = real_flops(lambda: adapter.prefill(model, batch, kept["features"], cache))
        held = cache_bytes(cache)
        tokens = torch.full((len(batch.sample_ids), 1), 5)
        real["decode"] = real_flops(lambda: adapter.decode_step(model, batch, tokens, 0, cache))
    return real, held


_ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "mt5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    **{key: {"d_model": 64} for key in ("bart", "mbart", "marian", "pegasus", "whisper")},
}
_LAYERS = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
_IDS = {
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "decoder_start_token_id": 2,
}


def encoder_decoder_arch(family: str) -> dict[str, Any]:
    """Return ``model.arch`` of a tiny encoder-decoder."""
    sizes = _ENCODER_DECODERS[family]
    arch = {"model_type": family, **sizes, **_IDS}
    if "d_kv" not in sizes:
        arch |= _LAYERS
    if family in ("t5", "pegasus"):
        del arch["bos_token_id"]  # they have no such token
    if family == "t5":
        del arch["decoder_start_token_id"]  # padding
    if family == "whisper":
        arch |= {"num_mel_bins": 8, "max_source_positions": 100, "max_target_positions": 64}
    elif family == "marian":
        arch["decoder_vocab_size"] = 512
    return arch


def check_encoder_decoder(family: str) -> Row:
    """Run one encoder-decoder family at a tiny size and compare everything that can be compared."""
    speech = family == "whisper"
    model = ModelConfig(
        adapter="hf_speech_seq2seq" if speech else "hf_seq2seq",
        arch=encoder_decoder_arch(family),
        name=family,
        dtype=Dtype.float32,
    )
    requests = (
        made_up_samples(GeneratedAudioConfig(seconds=1.5))
        if speech
        else [Sample("long", synthetic_tokens=12), Sample("short", synthetic_tokens=7)]
    )
    return check_row(family, model, requests)
