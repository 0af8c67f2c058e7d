"""compressed-tensors: groups of targets with their own scheme, an ignore list, and a scheme of the cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_perf_opt.analysis.static.quantised.formats import Compressed, WeightFormat
from llm_perf_opt.analysis.static.quantised.rules import NotKnown, Rule, Target, number

_PACKED = ("pack-quantized",)
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_NVFP4 = ("nvfp4-pack-quantized",)
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_FP32 = 4


def compressed_rules(config: Mapping[str, Any], _head: str | None, size: float) -> list[Rule]:
    """Return one rule per config group; what ``ignore`` names stays, the output head only if it is named."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise NotKnown("no config_groups")
    ignored = [str(name) for name in config.get("ignore") or ()]
    rules = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if weights is None:
            continue
        targets = [str(name) for name in group.get("targets") or ()]
        stored = _format(group, weights, str(group.get("format") or config.get("format")), int(size))
        rules.append(Rule(_covers(targets, ignored), stored))
    if not rules:
        raise NotKnown("no group with weights")
    return rules


def _covers(targets: Sequence[str], ignored: Sequence[str]) -> Callable[[Target], bool]:
    def covers(target: Target) -> bool:
        if not (target.is_linear or target.is_experts):
            return False
        kind = "Linear" if target.is_experts else target.type
        wanted = any(one == kind or _matches(target, one) for one in targets)
        return wanted and not any(one == kind or _matches(target, one) for one in ignored)

    return covers


def _matches(target: Target, pattern: str) -> bool:
    if not pattern.startswith("re:"):
        return pattern in target.names
    return any(re.match(pattern.removeprefix("re:"), name) is not None for name in target.names)


def _format(group: Mapping[str, Any], weights: Mapping[str, Any], name: str, size: int) -> WeightFormat:
    bits, kind = number(weights.get("num_bits")), str(weights.get("type", "int"))
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
    if (
        bits is None
        or strategy not in _STRATEGIES
        or name not in (*_PACKED, *_PLAIN, *_NVFP4)
        or (name in _PACKED and bits not in (2, 4, 8))
    ):
        raise NotKnown(f"format={name}, num_bits={bits}, strategy={strategy}")
    inputs = group.get("input_activations")
    is_static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
    block = weights.get("block_structure")
    nvfp4 = name in _NVFP4
    scheme = Compressed(
        bits=bits,
        strategy=strategy,
        group_size=number(weights.get("group_size")) or 0,
        block=(int(block[0]), int(block[1]))
        if isinstance(block, list | tuple) and len(block) == 2
        else (128, 128),
        packed=name in _PACKED,
        symmetric=bool(weights.get("symmetric", True)),
        ordered=str(weights.get("actorder")).lower() in ("group", "true"),
        scale_bytes=1 if nvfp4 else size,
        fixed_bytes=_FP32 * (2 if inputs else 1) if nvfp4 else (size if is_static else 0),
    )
    dtype = f"{kind}{bits}"
    own_block = scheme.block if strategy == "block" else None
    return WeightFormat(dtype, scheme.nbytes, _computed_in(inputs, bits, kind), own_block)


def _computed_in(inputs: Any, bits: int, kind: str) -> str | None:
    """Return the type of a product whose inputs are quantised too: the wider of the two operands."""
    if not isinstance(inputs, Mapping):
        return None
    width = max(bits, number(inputs.get("num_bits")) or bits)
    return f"{inputs.get('type', kind)}{width}"


def cache_dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the type a checkpoint sets for its key-value cache (``kv_cache_scheme``)."""
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):
        return None
    bits = number(scheme.get("num_bits"))
    return f"{scheme.get('type', 'float')}{bits}" if bits is not None else None
