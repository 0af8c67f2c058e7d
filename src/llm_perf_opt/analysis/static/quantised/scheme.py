"""``quantization_config`` of a checkpoint read: which modules are stored in which format.

The rules which modules are left alone are those of the library that loads the method; each is said beside its reader.
A method or a variant that is not known gives a :class:`Scheme` with a reason and no formats: sizes are then unknown, never
those of 16 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.analysis.static.quantised.compressed import cache_dtype_of, compressed_rules
from llm_perf_opt.analysis.static.quantised.formats import (
    WeightFormat,
    awq,
    bitsandbytes_4bit,
    bitsandbytes_8bit,
    block_scaled,
    gptq,
    mxfp4,
    per_row,
)
from llm_perf_opt.analysis.static.quantised.rules import NotKnown, Rule, Target, is_left_out, number

_IN_BLOCK = re.compile(r"(?:^|\.)\d+(?:\.|$)")

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "fp8": ("accelerate",),
    "gptq": ("optimum", "gptqmodel"),
    "awq": ("gptqmodel", "accelerate"),
    "mxfp4": (),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "torchao": ("torchao",),
    "compressed-tensors": ("compressed_tensors",),
    "hqq": ("hqq",),
    "quanto": ("optimum.quanto",),
    "aqlm": ("aqlm",),
    "eetq": ("eetq",),
    "quark": ("quark",),
    "auto-round": ("auto_round",),
    "fbgemm_fp8": ("fbgemm_gpu",),
}
"""Method → modules that transformers imports to load it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a ``quantization_config`` says."""

    method: str
    rules: tuple[Rule, ...] = ()
    """The first that takes a parameter decides."""
    cache_dtype: str | None = None
    reason: str | None = None
    """Why sizes are not known."""
    notes: tuple[str, ...] = field(default=())

    def format_of(self, target: Target) -> WeightFormat | None:
        """Return how a parameter is stored; ``None``: as it is."""
        return next((rule.format for rule in self.rules if rule.covers(target)), None)


def method_of(config: Mapping[str, Any]) -> str:
    """Return the name of the method; older bitsandbytes checkpoints only say in how many bits to load."""
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    found = config.get("quant_method")
    name = str(getattr(found, "value", found) or "unnamed")
    return {"compressed_tensors": "compressed-tensors", "bitsandbytes_4bit": "bitsandbytes"}.get(name, name)


def read_scheme(config: Mapping[str, Any], *, head: str | None, element_bytes: float) -> Scheme:
    """Read a ``quantization_config``; ``element_bytes`` is the size of what stays unquantised, scales included."""
    method = method_of(config)
    reader = _READERS.get(method)
    cache = cache_dtype_of(config)
    if reader is None:
        return Scheme(method, (), cache, f"the storage format of quant_method={method} is not known here")
    try:
        return Scheme(method, tuple(reader(config, head, element_bytes)), cache)
    except NotKnown as unknown:
        return Scheme(method, (), cache, f"quant_method={method}: {unknown}")


def _names(config: Mapping[str, Any], *keys: str) -> list[str] | None:
    """Return the first list of module names that is there."""
    for key in keys:
        found = config.get(key)
        if isinstance(found, list | tuple):
            return [str(name) for name in found]
    return None


def _without(skipped: Sequence[str] | None, head: str | None, *, always_head: bool) -> list[str]:
    """Return names to leave alone: those listed, and the output head where the library adds it."""
    default = [head] if head is not None else []
    if skipped is None:
        return default
    return [*skipped, *(default if always_head else [])]


def _linear(skipped: Sequence[str], *, experts: bool) -> Callable[[Target], bool]:
    def covers(target: Target) -> bool:
        held = target.is_linear or (experts and target.is_experts)
        return held and not is_left_out(target, skipped)

    return covers


def _fp8(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """transformers' fine-grained fp8: every ``nn.Linear`` and stack of experts that the list does not name."""
    skipped = _without(_names(config, "modules_to_not_convert", "ignored_layers"), head, always_head=False)
    block = config.get("weight_block_size", (128, 128))
    if block is not None and (
        not isinstance(block, list | tuple) or len(block) != 2 or not all(number(n) for n in block)
    ):
        raise NotKnown(f"weight_block_size={block!r}")
    scale = 1 if config.get("scale_fmt") == "ue8m0" and block is not None else 4
    static = str(config.get("activation_scheme", "dynamic")).lower() == "static"
    shape = (int(block[0]), int(block[1])) if block is not None else None
    eight = WeightFormat("float8", block_scaled(8, shape, scale, activation_scale=static), "float8", shape)
    rules = [Rule(_linear(skipped, experts=True), eight)]
    if config.get("expert_dtype") == "fp4":
        four = WeightFormat("float4", block_scaled(4, (1, 32), scale), "float8", (1, 32))
        in_experts = _linear(skipped, experts=True)
        rules.insert(0, Rule(lambda target: target.is_experts and in_experts(target), four))
    return rules


def _gptq(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """GPTQ: linear layers of the decoder's blocks; ``dynamic`` changes or leaves out modules by pattern."""
    bits, group = number(config.get("bits")), config.get("group_size", 128)
    if bits not in (2, 3, 4, 8) or not isinstance(group, int):
        raise NotKnown(f"bits={config.get('bits')!r}, group_size={group!r}")
    prefix = config.get("block_name_to_quantize")
    inside = config.get("modules_in_block_to_quantize")
    listed = {str(name) for part in inside or () for name in (part if isinstance(part, list) else [part])}
    with_head = bool(config.get("lm_head"))

    def covers(target: Target) -> bool:
        if target.path == head:
            return with_head and target.is_linear
        in_blocks = _IN_BLOCK.search(target.path) is not None
        if prefix:
            in_blocks = in_blocks and target.path.startswith(f"{prefix}.")
        named = not listed or any(name.endswith(tuple(f".{one}" for one in listed)) for name in target.names)
        return (target.is_linear or target.is_experts) and in_blocks and named

    rules = []
    for pattern, changed in (config.get("dynamic") or {}).items():
        kind, _, expression = str(pattern).rpartition(":")
        matches = re.compile(expression if kind else str(pattern))

        def met(target: Target, matches: re.Pattern[str] = matches) -> bool:
            return covers(target) and any(matches.match(name) for name in target.names)

        own = None
        if kind != "-":
            changed = changed if isinstance(changed, Mapping) else {}
            own_bits = int(changed.get("bits", bits))
            own = WeightFormat(f"int{own_bits}", gptq(own_bits, int(changed.get("group_size", group))))
        rules.append(Rule(met, own))
    return [*rules, Rule(covers, WeightFormat(f"int{bits}", gptq(bits, group)))]


def _awq(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """AWQ: linear layers but the output head and what the list names."""
    bits = number(config.get("bits", config.get("w_bit")))
    group = config.get("group_size", config.get("q_group_size", 128))
    version = str(config.get("version", "gemm")).lower()
    if bits != 4 or not isinstance(group, int) or version != "gemm":
        raise NotKnown(f"bits={bits!r}, group_size={group!r}, version={version}")
    skipped = _without(_names(config, "modules_to_not_convert") or [], head, always_head=True)
    return [Rule(_linear(skipped, experts=True), WeightFormat("int4", awq(bits, group)))]


def _mxfp4(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """MXFP4 (gpt-oss): the stacked experts' matrices; biases stay."""
    skipped = _without(_names(config, "modules_to_not_convert"), head, always_head=False)

    def covers(target: Target) -> bool:
        return target.is_experts and not is_left_out(target, skipped)

    return [Rule(covers, WeightFormat("float4", mxfp4))]


def _bitsandbytes(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """bitsandbytes: every ``nn.Linear`` but the output head (or the list); stacked experts stay as they are."""
    skipped = _without(_names(config, "llm_int8_skip_modules"), head, always_head=False)
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        nested = bool(config.get("bnb_4bit_use_double_quant", False))
        stored = WeightFormat("float4", bitsandbytes_4bit(double_quant=nested))
    elif config.get("load_in_8bit") or config.get("_load_in_8bit"):
        stored = WeightFormat("int8", bitsandbytes_8bit, "int8")
    else:
        raise NotKnown("neither load_in_4bit nor load_in_8bit is set")
    return [Rule(_linear(skipped, experts=False), stored)]


def _torchao(config: Mapping[str, Any], head: str | None, size: float) -> list[Rule]:
    """torchao: every ``nn.Linear`` but the output head (or the list), in the one type it names."""
    skipped = _without(_names(config, "modules_to_not_convert"), head, always_head=False)
    if config.get("include_input_output_embeddings"):
        raise NotKnown("include_input_output_embeddings=true")
    kind = config.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, Mapping) else kind
    name = str(kind.get("_type") if isinstance(kind, Mapping) else kind)
    data = kind.get("_data") if isinstance(kind, Mapping) else config.get("quant_type_kwargs")
    options: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    plain = name.removesuffix("Config").replace("_", "").lower()
    group = number(options.get("group_size")) or 0
    side = int(size)
    known = {
        "int8weightonly": lambda: WeightFormat("int8", per_row(8, side, group)),
        "int8dynamicactivationint8weight": lambda: WeightFormat("int8", per_row(8, side), "int8"),
        "int4weightonly": lambda: WeightFormat("int4", per_row(4, side, group or 128, with_zero=True)),
        "float8weightonly": lambda: WeightFormat("float8", per_row(8, 4)),
        "float8dynamicactivationfloat8weight": lambda: WeightFormat(
            "float8",
            per_row(8, 4)
            if "perrow" in str(options.get("granularity")).lower()
            else block_scaled(8, None, 4),
            "float8",
        ),
    }
    if plain not in known:
        raise NotKnown(f"the torchao type {name} is not known here")
    return [Rule(_linear(skipped, experts=False), known[plain]())]


_READERS: Mapping[str, Callable[[Mapping[str, Any], str | None, float], Sequence[Rule]]] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
    "compressed-tensors": compressed_rules,
}
