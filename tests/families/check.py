"""One family: what our engine and our static model say, against transformers and torch themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from llm_perf_opt.config.schema import CacheKind, DatasetConfig, Dtype, InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.workloads.base import PhaseShapes, Sample, WorkloadConfig
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.models.caches import OwnState
from llm_perf_opt.workloads.registry import load_adapter
from tests.families.tiny import tiny_arch

PROMPT_TOKENS, SHORT_PROMPT_TOKENS, NEW_TOKENS = 12, 7, 6
MOST_PARAMETERS = 20_000_000
_MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)
ONE_SEQUENCE_ONLY = frozenset({"rwkv"})
TAKES_NO_MASK = frozenset({"xlstm"})
_WINDOWS = (
    "sliding_window",
    "attention_window_size",
    "window_size",
    "attention_chunk_size",
    "local_attention",
)


@dataclass(slots=True)
class Row:
    """One line of the table. ``None``: could not be tried."""

    family: str
    runs: bool = False
    tokens: bool | None = None
    parameters: bool | None = None
    flops: bool | None = None
    cache: bool | None = None
    remark: str = ""
    static: bool | None = None
    """Whether the tokens of ``model.cache=static`` equal ``generate()``'s; ``None``: refused."""

    def exact(self) -> bool:
        """Whether everything was tried and is equal; a static cache may be refused."""
        return self.static is not False and all(
            (self.runs, self.tokens, self.parameters, self.flops, self.cache)
        )

    def verdict(self) -> str:
        """One word or two for the row."""
        if self.exact():
            return "exact"
        if not self.runs:
            return next(
                (kind for kind in ("refused", "not tried") if self.remark.startswith(kind)), "failing"
            )
        compared = (self.tokens, self.parameters, self.flops, self.cache, self.static)
        return "wrong" if False in compared else "run, not counted"


def check_family(family: str) -> Row:
    """Run one family at a tiny size and compare everything that can be compared."""
    row = Row(family)
    workload = _workload(family)
    try:
        bare = load_adapter(workload.model, workload.infer).build("meta", torch.float32)
        size = sum(parameter.numel() for parameter in bare.parameters())
        if size > MOST_PARAMETERS:
            row.remark = f"not tried: its smallest size here has {size:,} parameters"
            return row
        engine = Engine(workload)
    except (ConfigError, InputError, ToolError) as error:
        # A size made up here that the family's own checks refuse says nothing about the family.
        made_up = "cannot be built" in error.message or "is not a valid" in error.message
        row.remark = f"{'not tried' if made_up else 'refused'}: {error.message}"
        return row
    window = longest_window(engine.model.config)
    if window >= PROMPT_TOKENS:
        row.remark = f"not tried: its window of {window} tokens is not shorter than the prompt"
        return row
    try:
        row.tokens = _tokens_equal(engine, row)
        row.runs = True
        _compare_counts(engine, row)
        row.static = _static_tokens_equal(row)
    except _MODEL_ERRORS as error:
        row.remark = f"fails: {type(error).__name__}: {str(error)[:160]}"
    row.remark = " ".join(row.remark.split())
    return row


def longest_window(config: Any) -> int:
    """Return the longest attention window or chunk that a model configuration names; 0 without one."""
    values = vars(config.get_text_config()).items()
    return max((size for name, size in values if name in _WINDOWS and isinstance(size, int)), default=0)


def _static_tokens_equal(row: Row) -> bool | None:
    """Return whether a static cache gives the tokens of ``generate()``; ``None``: refused before any work."""
    try:
        engine = Engine(_workload(row.family, CacheKind.static))
    except ConfigError as error:
        row.remark += f" static cache refused: {error.message}"
        return None
    return _tokens_equal(engine, row)


def _workload(family: str, cache: CacheKind = CacheKind.dynamic) -> WorkloadConfig:
    arch = tiny_arch(family)
    model = ModelConfig(adapter="hf_causal_lm", arch=arch, name=family, dtype=Dtype.float32, cache=cache)
    size = 1 if family in ONE_SEQUENCE_ONLY else 2
    infer = InferConfig(
        max_new_tokens=NEW_TOKENS, warmup_rounds=0, ignore_eos=True, batch_size=size, chat_template=False
    )
    return WorkloadConfig(model, infer, DatasetConfig(), "cpu", 1, NEW_TOKENS)


def _tokens_equal(engine: Engine, row: Row) -> bool:
    """Alone and padded in a batch."""
    requests = [
        Sample("long", synthetic_tokens=PROMPT_TOKENS),
        Sample("short", synthetic_tokens=SHORT_PROMPT_TOKENS),
    ]
    batches = [requests[:1]]
    if engine.workload.infer.batch_size > 1 and row.family not in TAKES_NO_MASK:
        batches.append(requests)
    return all(_equals_generate(engine, batch) for batch in batches)


def _equals_generate(engine: Engine, requests: list[Sample]) -> bool:
    batch, ours = engine.run_sample(requests)
    ids, mask = batch.inputs["input_ids"], batch.inputs["mask"]
    engine.model.generation_config.eos_token_id = None
    with torch.no_grad():
        out = engine.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids) if mask is None else mask,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=2,
            disable_compile=True,
        )
    return bool(ours.token_ids == out[:, ids.shape[1] :].tolist())


def _compare_counts(engine: Engine, row: Row) -> None:
    counter = StaticCounter(engine.adapter, torch.float32)
    size = engine.workload.infer.batch_size
    shapes = PhaseShapes(size, PROMPT_TOKENS, 0, PROMPT_TOKENS)
    counted = {phase: counter.count(phase, shapes) for phase in ("prefill", "decode")}
    try:
        document = counter.document(shapes, decode_steps=2)
    except InputError as error:
        row.remark = error.message
        return
    row.parameters = document.static.params.total == sum(p.numel() for p in engine.model.parameters())
    requests = [Sample(f"request{n}", synthetic_tokens=PROMPT_TOKENS) for n in range(size)]
    batch = engine.prepare(requests)
    with torch.no_grad():
        cache = engine.adapter.make_cache(engine.model, batch, NEW_TOKENS)
        real = {"prefill": real_flops(lambda: engine.adapter.prefill(engine.model, batch, None, cache))}
        held = cache_bytes([cache, [_plain_attributes(module) for module in engine.model.modules()]])
        tokens = torch.full((size, 1), 5)
        real["decode"] = real_flops(lambda: engine.adapter.decode_step(engine.model, batch, tokens, 0, cache))
    ours = {phase: count.raw_flops() if count is not None else None for phase, count in counted.items()}
    row.flops = ours == real
    if not row.flops:
        row.remark += f" FLOPs {ours} for {real};"
    row.cache = document.totals.kv_prefill_bytes == held
    if not row.cache:
        row.remark += f" cache {document.totals.kv_prefill_bytes} for {held} bytes;"
    if not row.exact():
        row.remark += " " + "; ".join(document.notes)


def real_flops(call: Any) -> int:
    """Return what torch counts for a call on real tensors."""
    mode = FlopCounterMode(display=False, custom_mapping=_MISSING)
    with mode:
        call()
    return int(mode.get_total_flops())


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _grouped(left: Any, right: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return int(2 * math.prod(left) * right[-1])


_MISSING = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    torch.ops.aten._grouped_mm: _grouped,
}


def cache_bytes(cache: object) -> int:
    """Bytes of every tensor an object holds, each storage region once; found by walking it, whatever it is."""
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in _tensors(cache, set())}.values())


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """What a module keeps besides parameters and buffers: some keep their state there."""
    return {
        name: value for name, value in vars(module).items() if "state" in name and not name.startswith("_")
    }


def _tensors(item: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, torch.Tensor):
        if item.ndim > 1:  # counters and window sizes are bookkeeping
            yield item
    elif isinstance(item, dict):
        for value in item.values():
            yield from _tensors(value, seen)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _tensors(value, seen)
    elif isinstance(item, OwnState):
        yield from _tensors(item.value, seen)
    elif hasattr(item, "__dict__") and type(item).__module__.startswith("transformers"):
        yield from _tensors(vars(item), seen)
