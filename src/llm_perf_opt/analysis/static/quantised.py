"""``quantization_config`` of a checkpoint read: which modules are stored in which format.

The rules for modules that stay unquantised are those of the library that loads the method; each is documented at its parser.
A method or a variant that is not known gives a :class:`Scheme` with a reason and no formats: sizes are then unknown, never
those of 16 bits.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.analysis.static.counts import ModelTree, ParamInfo, PhaseCount
from llm_perf_opt.core.units import dtype_bytes
from llm_perf_opt.summary import Static
from llm_perf_opt.summary.static import Quantisation, Split

# Bytes of one weight matrix in each storage format: packed values, scales, zero points.
#
# A format is a function from the matrix to its bytes. Sizes follow the tensors that the libraries write; metadata a pass never
# reads (a shape, a version, a description as text) are left out.


_INT32_BITS = 32
_FP32 = 4
_FP16 = 2
_NF4_BLOCK = 64
"""Values that share a scale in bitsandbytes' 4-bit types."""
_NESTED_BLOCK = 256
"""Scales that share a scale where they are quantised themselves."""
_NF4_TABLE = 16 * _FP32
_NESTED_TABLE = 256 * _FP32
_MX_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as a linear layer holds it; routed experts are a stack of them."""

    rows: int
    """Outputs."""
    columns: int
    """Inputs: groups run along them."""
    stack: int = 1

    @property
    def numel(self) -> int:
        """All elements."""
        return self.rows * self.columns * self.stack


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a parameter is stored and multiplied."""

    dtype: str
    nbytes: Callable[[Matrix], int]
    compute_dtype: str | None = None
    """Type of both operands where activations are quantised too; ``None``: weights are widened first."""
    block: tuple[int, int] | None = None
    """Outputs and inputs of a block with a scale of its own."""


def _ceil_div(value: int, unit: int) -> int:
    """Divide, rounding up."""
    return -(-value // unit)


def _groups(matrix: Matrix, group_size: int) -> int:
    return _ceil_div(matrix.columns, group_size) if group_size > 0 else 1


def _block_scaled(
    element_bits: int, block: tuple[int, int] | None, scale_bytes: int, *, activation_scale: bool = False
) -> Callable[[Matrix], int]:
    """Values with one scale for each block of rows × columns; ``None``: one scale for the whole matrix."""

    def nbytes(matrix: Matrix) -> int:
        scales = (
            _ceil_div(matrix.rows, block[0]) * _ceil_div(matrix.columns, block[1]) if block is not None else 1
        )
        each = _ceil_div(matrix.rows * matrix.columns * element_bits, 8) + scales * scale_bytes
        return matrix.stack * (each + (_FP32 if activation_scale else 0))

    return nbytes


def gptq(bits: int, group_size: int) -> Callable[[Matrix], int]:
    """``qweight`` and ``qzeros`` packed into 32-bit words, ``scales`` in 16 bits, ``g_idx`` of every input."""

    def nbytes(matrix: Matrix) -> int:
        groups = _groups(matrix, group_size)
        values = _ceil_div(matrix.columns * bits, _INT32_BITS) * matrix.rows * 4
        zeros = groups * _ceil_div(matrix.rows * bits, _INT32_BITS) * 4
        return matrix.stack * (values + zeros + groups * matrix.rows * _FP16 + matrix.columns * 4)

    return nbytes


def awq(bits: int, group_size: int) -> Callable[[Matrix], int]:
    """``qweight`` and ``qzeros`` packed along the outputs into 32-bit words, ``scales`` in 16 bits."""

    def nbytes(matrix: Matrix) -> int:
        groups = _groups(matrix, group_size)
        words = _ceil_div(matrix.rows * bits, _INT32_BITS) * 4
        return matrix.stack * ((matrix.columns + groups) * words + groups * matrix.rows * _FP16)

    return nbytes


def mxfp4(matrix: Matrix) -> int:
    """32 values in 16 bytes (``_blocks``) and one byte of scale (``_scales``)."""
    return matrix.stack * matrix.rows * _ceil_div(matrix.columns, _MX_BLOCK) * (_MX_BLOCK // 2 + 1)


def _bitsandbytes_4bit(*, double_quant: bool) -> Callable[[Matrix], int]:
    """Two values per byte, a scale per 64 values (``absmax``), in 8 bits with scales of their own if nested."""

    def nbytes(matrix: Matrix) -> int:
        blocks = _ceil_div(matrix.numel, _NF4_BLOCK)
        scales = blocks * _FP32
        if double_quant:
            scales = blocks + _ceil_div(blocks, _NESTED_BLOCK) * _FP32 + _NESTED_TABLE
        return _ceil_div(matrix.numel, 2) + scales + _NF4_TABLE

    return nbytes


def _bitsandbytes_8bit(matrix: Matrix) -> int:
    """One byte per value and a 32-bit scale per output (``SCB``)."""
    return matrix.numel + matrix.rows * matrix.stack * _FP32


def _per_row(
    element_bits: int, scale_bytes: int, group_size: int = 0, *, with_zero: bool = False
) -> Callable[[Matrix], int]:
    """Values with a scale (and a zero point of its size) for each output, or each group of inputs of it."""

    def nbytes(matrix: Matrix) -> int:
        scales = matrix.rows * _groups(matrix, group_size)
        values = _ceil_div(matrix.rows * matrix.columns * element_bits, 8)
        return matrix.stack * (values + scales * scale_bytes * (2 if with_zero else 1))

    return nbytes


@dataclass(frozen=True, slots=True)
class _Compressed:
    """The parts of a compressed-tensors scheme that decide its size."""

    bits: int
    strategy: str
    """``tensor``, ``channel``, ``group``, ``block``, ``tensor_group``."""
    group_size: int
    block: tuple[int, int]
    packed: bool
    """Whether values are packed into 32-bit words, row by row."""
    symmetric: bool
    ordered: bool
    """Whether columns carry the number of their group (``actorder=group``)."""
    scale_bytes: int
    fixed_bytes: int
    """Scales of the whole matrix and of its inputs."""

    def nbytes(self, matrix: Matrix) -> int:
        """Return the bytes of a matrix."""
        rows, columns = matrix.rows, matrix.columns
        groups = _groups(matrix, self.group_size) if self.strategy in ("group", "tensor_group") else 1
        scales = {
            "tensor": 1,
            "block": _ceil_div(rows, self.block[0]) * _ceil_div(columns, self.block[1]),
        }.get(self.strategy, rows * groups)
        if self.packed:
            values = rows * _ceil_div(columns, _INT32_BITS // self.bits) * 4
            zeros = _ceil_div(rows, _INT32_BITS // self.bits) * 4 * groups
        else:
            values, zeros = _ceil_div(rows * columns * self.bits, 8), scales
        total = values + scales * self.scale_bytes + self.fixed_bytes
        total += 0 if self.symmetric else zeros
        return matrix.stack * (total + (columns * 4 if self.ordered else 0))


# Which parameters a rule of a quantised checkpoint applies to.


_EXPERT_PARTS = {
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"),
    "down_proj": ("down_proj", "w2"),
    "up_proj": ("up_proj", "w1"),
}
"""Stacked parameter → what checkpoints call the single experts' matrices."""


class _NotKnown(Exception):
    """A variant of a method with unknown sizes."""


@dataclass(frozen=True, slots=True)
class Target:
    """One weight matrix (or stack of experts) as rules see it."""

    path: str
    """Module that owns it."""
    parameter: str
    """Its name in the module."""
    type: str
    """Class of the module."""
    is_experts: bool

    @property
    def is_linear(self) -> bool:
        """Whether it is the weight of a plain linear layer."""
        return self.type == "Linear" and self.parameter == "weight"

    @property
    def names(self) -> tuple[str, ...]:
        """Module names that a list may use for it; for stacked experts also those of their single layers."""
        if not self.is_experts:
            return (self.path,)
        parts = _EXPERT_PARTS.get(self.parameter, (self.parameter,))
        return (self.path, *(f"{self.path}.0.{part}" for part in parts))


@dataclass(frozen=True, slots=True)
class Rule:
    """Parameters with the same storage format; without a format they are unchanged."""

    covers: Callable[[Target], bool]
    format: WeightFormat | None


def _is_left_out(target: Target, patterns: Sequence[str]) -> bool:
    """Whether a list of modules not to convert contains this one, by transformers' rule.

    A pattern holds from the start of a name up to a module's end, as a regular expression, or as the end of the name.
    """
    return any(_named(name, pattern) for name in target.names for pattern in patterns)


def _named(name: str, pattern: str) -> bool:
    if name.endswith(pattern):
        return True
    try:
        return re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", name) is not None
    except re.error:
        return False


def number(value: Any) -> int | None:
    """Return a positive whole number; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


# compressed-tensors: groups of targets with their own scheme, an ignore list, and a scheme of the cache.


_PACKED = ("pack-quantized",)
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_NVFP4 = ("nvfp4-pack-quantized",)
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")


def _compressed_rules(config: Mapping[str, Any], _head: str | None, size: float) -> list[Rule]:
    """Return one rule per config group; modules in ``ignore`` are unchanged, the output head only if listed."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _NotKnown("no config_groups")
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
        raise _NotKnown("no group with weights")
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
        raise _NotKnown(f"format={name}, num_bits={bits}, strategy={strategy}")
    inputs = group.get("input_activations")
    is_static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
    block = weights.get("block_structure")
    nvfp4 = name in _NVFP4
    scheme = _Compressed(
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


def _cache_dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the type a checkpoint sets for its key-value cache (``kv_cache_scheme``, or modelopt's key)."""
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):
        by_name = {"FP8": "float8", "NVFP4": "float4", "INT8": "int8"}
        return by_name.get(str(config.get("kv_cache_quant_algo")))
    bits = number(scheme.get("num_bits"))
    return f"{scheme.get('type', 'float')}{bits}" if bits is not None else None


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
    """The parsed content of a ``quantization_config``."""

    method: str
    rules: tuple[Rule, ...] = ()
    """The first that takes a parameter decides."""
    cache_dtype: str | None = None
    reason: str | None = None
    """Why sizes are not known."""
    notes: tuple[str, ...] = field(default=())

    def format_of(self, target: Target) -> WeightFormat | None:
        """Return the storage format of a parameter; ``None``: unchanged."""
        return next((rule.format for rule in self.rules if rule.covers(target)), None)


def method_of(config: Mapping[str, Any]) -> str:
    """Return the name of the method; older bitsandbytes checkpoints contain only the number of bits."""
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    found = config.get("quant_method")
    name = str(getattr(found, "value", found) or "unnamed")
    if name.startswith("modelopt_"):  # engines' spelling of the format: modelopt_fp4
        return "modelopt"
    return {"compressed_tensors": "compressed-tensors", "bitsandbytes_4bit": "bitsandbytes"}.get(name, name)


def read_scheme(config: Mapping[str, Any], *, head: str | None, element_bytes: float) -> Scheme:
    """Read a ``quantization_config``; ``element_bytes`` is the size of what stays unquantised, scales included."""
    method = method_of(config)
    reader = _READERS.get(method)
    cache = _cache_dtype_of(config)
    if reader is None:
        return Scheme(method, (), cache, f"the storage format of quant_method={method} is not known here")
    try:
        return Scheme(method, tuple(reader(config, head, element_bytes)), cache)
    except _NotKnown as unknown:
        return Scheme(method, (), cache, f"quant_method={method}: {unknown}")


def _names(config: Mapping[str, Any], *keys: str) -> list[str] | None:
    """Return the first list of module names that is present."""
    for key in keys:
        found = config.get(key)
        if isinstance(found, list | tuple):
            return [str(name) for name in found]
    return None


def _without(skipped: Sequence[str] | None, head: str | None, *, always_head: bool) -> list[str]:
    """Return modules to leave unquantised: those listed, and the output head where the library adds it."""
    default = [head] if head is not None else []
    if skipped is None:
        return default
    return [*skipped, *(default if always_head else [])]


def _linear(skipped: Sequence[str], *, experts: bool) -> Callable[[Target], bool]:
    def covers(target: Target) -> bool:
        held = target.is_linear or (experts and target.is_experts)
        return held and not _is_left_out(target, skipped)

    return covers


def _fp8(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """transformers' fine-grained fp8: every ``nn.Linear`` and stack of experts that is not listed."""
    skipped = _without(_names(config, "modules_to_not_convert", "ignored_layers"), head, always_head=False)
    block = config.get("weight_block_size", (128, 128))
    if block is not None and (
        not isinstance(block, list | tuple) or len(block) != 2 or not all(number(n) for n in block)
    ):
        raise _NotKnown(f"weight_block_size={block!r}")
    scale = 1 if config.get("scale_fmt") == "ue8m0" and block is not None else 4
    static = str(config.get("activation_scheme", "dynamic")).lower() == "static"
    shape = (int(block[0]), int(block[1])) if block is not None else None
    eight = WeightFormat("float8", _block_scaled(8, shape, scale, activation_scale=static), "float8", shape)
    rules = [Rule(_linear(skipped, experts=True), eight)]
    if config.get("expert_dtype") == "fp4":
        four = WeightFormat("float4", _block_scaled(4, (1, 32), scale), "float8", (1, 32))
        in_experts = _linear(skipped, experts=True)
        rules.insert(0, Rule(lambda target: target.is_experts and in_experts(target), four))
    return rules


def _gptq(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """GPTQ: linear layers of the decoder's blocks; ``dynamic`` changes or leaves out modules by pattern."""
    bits, group = number(config.get("bits")), config.get("group_size", 128)
    if bits not in (2, 3, 4, 8) or not isinstance(group, int):
        raise _NotKnown(f"bits={config.get('bits')!r}, group_size={group!r}")
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
        raise _NotKnown(f"bits={bits!r}, group_size={group!r}, version={version}")
    skipped = _without(_names(config, "modules_to_not_convert") or [], head, always_head=True)
    return [Rule(_linear(skipped, experts=True), WeightFormat("int4", awq(bits, group)))]


def _mxfp4(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """MXFP4 (gpt-oss): the stacked experts' matrices; biases stay."""
    skipped = _without(_names(config, "modules_to_not_convert"), head, always_head=False)

    def covers(target: Target) -> bool:
        return target.is_experts and not _is_left_out(target, skipped)

    return [Rule(covers, WeightFormat("float4", mxfp4))]


def _bitsandbytes(config: Mapping[str, Any], head: str | None, _size: float) -> list[Rule]:
    """bitsandbytes: every ``nn.Linear`` but the output head (or the list); stacked experts stay as they are."""
    skipped = _without(_names(config, "llm_int8_skip_modules"), head, always_head=False)
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        nested = bool(config.get("bnb_4bit_use_double_quant", False))
        stored = WeightFormat("float4", _bitsandbytes_4bit(double_quant=nested))
    elif config.get("load_in_8bit") or config.get("_load_in_8bit"):
        stored = WeightFormat("int8", _bitsandbytes_8bit, "int8")
    else:
        raise _NotKnown("neither load_in_4bit nor load_in_8bit is set")
    return [Rule(_linear(skipped, experts=False), stored)]


def _torchao(config: Mapping[str, Any], head: str | None, size: float) -> list[Rule]:
    """torchao: every ``nn.Linear`` but the output head (or the list), in the one type it names."""
    skipped = _without(_names(config, "modules_to_not_convert"), head, always_head=False)
    if config.get("include_input_output_embeddings"):
        raise _NotKnown("include_input_output_embeddings=true")
    kind = config.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, Mapping) else kind
    name = str(kind.get("_type") if isinstance(kind, Mapping) else kind)
    data = kind.get("_data") if isinstance(kind, Mapping) else config.get("quant_type_kwargs")
    options: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    plain = name.removesuffix("Config").replace("_", "").lower()
    group = number(options.get("group_size")) or 0
    side = int(size)
    known = {
        "int8weightonly": lambda: WeightFormat("int8", _per_row(8, side, group)),
        "int8dynamicactivationint8weight": lambda: WeightFormat("int8", _per_row(8, side), "int8"),
        "int4weightonly": lambda: WeightFormat("int4", _per_row(4, side, group or 128, with_zero=True)),
        "float8weightonly": lambda: WeightFormat("float8", _per_row(8, 4)),
        "float8dynamicactivationfloat8weight": lambda: WeightFormat(
            "float8",
            _per_row(8, 4)
            if "perrow" in str(options.get("granularity")).lower()
            else _block_scaled(8, None, 4),
            "float8",
        ),
    }
    if plain not in known:
        raise _NotKnown(f"the torchao type {name} is not known here")
    return [Rule(_linear(skipped, experts=False), known[plain]())]


_NVFP4_BLOCK = 16


def _modelopt(config: Mapping[str, Any], _head: str | None, size: float) -> list[Rule]:
    """NVIDIA ModelOpt: linear layers and experts that ``ignore`` (``exclude_modules``) does not name, ``*`` being a wildcard.

    MIXED_PRECISION names the algorithm of each layer.
    """
    excluded = [str(name) for name in config.get("ignore") or config.get("exclude_modules") or ()]

    def covers(target: Target, wanted: Sequence[str] | None = None) -> bool:
        if not (target.is_linear or target.is_experts):
            return False
        if any(fnmatch.fnmatchcase(name, pattern) for name in target.names for pattern in excluded):
            return False
        return wanted is None or any(name in wanted for name in target.names)

    algorithm = str(config.get("quant_algo"))
    if algorithm != "MIXED_PRECISION":
        return [Rule(covers, _modelopt_format(algorithm, number(config.get("group_size")), int(size)))]
    layers = config.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        raise _NotKnown("MIXED_PRECISION without quantized_layers")
    by_format: dict[tuple[str, int | None], list[str]] = {}
    for name, layer in layers.items():
        found = layer if isinstance(layer, Mapping) else {}
        kind = (str(found.get("quant_algo")), number(found.get("group_size")))
        by_format.setdefault(kind, []).append(str(name))
    return [
        Rule(functools.partial(covers, wanted=names), _modelopt_format(kind, group, int(size)))
        for (kind, group), names in by_format.items()
    ]


def _modelopt_format(algorithm: str, group: int | None, size: int) -> WeightFormat:
    """FP8: a 4-byte scale of the weight and of its inputs. NVFP4: a 1-byte scale per 16 values, and the same two."""
    if algorithm == "FP8":
        return WeightFormat("float8", _block_scaled(8, None, _FP32, activation_scale=True), "float8")
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return WeightFormat("float8", _per_row(8, _FP32), "float8")
    if algorithm == "FP8_PB_WO":
        return WeightFormat("float8", _block_scaled(8, (128, 128), _FP32), "float8", (128, 128))
    if algorithm in ("NVFP4", "NVFP4_AWQ"):
        block = (1, group or _NVFP4_BLOCK)
        values = _block_scaled(4, block, 1)
        smoothing = size if algorithm == "NVFP4_AWQ" else 0

        def nbytes(matrix: Matrix) -> int:
            return values(matrix) + matrix.stack * (2 * _FP32 + smoothing * matrix.columns)

        return WeightFormat("float4", nbytes, "float4", block)
    if algorithm == "W4A16_AWQ":
        return WeightFormat("int4", _per_row(4, size, group or 128))
    raise _NotKnown(f"quant_algo={algorithm}")


_READERS: Mapping[str, Callable[[Mapping[str, Any], str | None, float], Sequence[Rule]]] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
    "compressed-tensors": _compressed_rules,
    "modelopt": _modelopt,
}


# A model's parameters at their stored size in a quantised checkpoint, and its cache in another type.


_MATRIX_AXES = 2
_STACK_AXES = 3
_TRANSPOSED = ("GptOssExperts", "Llama4TextExperts")
"""Stacks kept as ``[experts, inputs, outputs]``."""


def quantise(tree: ModelTree, scheme: Scheme) -> tuple[ModelTree, Quantisation]:
    """Return the tree with stored sizes and the scheme; an unknown scheme changes nothing."""
    if scheme.reason is not None:
        return tree, Quantisation(scheme.method, cache_dtype=scheme.cache_dtype, reason=scheme.reason)
    types = {module.name: module.type for module in tree.modules}
    params: list[ParamInfo] = []
    by_dtype: dict[str, int] = {}
    computed: dict[str | None, int] = {}
    blocks: dict[tuple[int, int] | None, int] = {}
    modules: set[str] = set()
    stored_bytes = 0
    for param in tree.params:
        kind = types.get(param.module, "")
        matrix = _matrix(param, kind)
        name = param.name.rpartition(".")[2]
        target = Target(param.module, name, kind, bool(param.experts) and len(param.shape) == _STACK_AXES)
        found = scheme.format_of(target) if matrix is not None else None
        if found is None or matrix is None:
            params.append(param)
            continue
        size = found.nbytes(matrix)
        params.append(replace(param, stored_bytes=size))
        stored_bytes += size
        modules.add(param.module)
        by_dtype[found.dtype] = by_dtype.get(found.dtype, 0) + param.numel
        computed[found.compute_dtype] = computed.get(found.compute_dtype, 0) + param.numel
        blocks[found.block] = blocks.get(found.block, 0) + param.numel
    total = sum(by_dtype.values())
    if not total:
        reason = "no module of this model is one that the method converts"
        return tree, Quantisation(scheme.method, cache_dtype=scheme.cache_dtype, reason=reason)
    block = max(blocks, key=lambda shape: blocks[shape])
    facts = Quantisation(
        method=scheme.method,
        dtype=max(by_dtype, key=lambda kind: by_dtype[kind]),
        compute_dtype=max(computed, key=lambda kind: computed[kind]),
        params=total,
        weight_bytes=stored_bytes,
        bytes_per_param=stored_bytes / total,
        modules=len(modules),
        cache_dtype=scheme.cache_dtype,
        block=list(block) if block is not None else None,
    )
    return replace(tree, params=tuple(params)), facts


def _matrix(param: ParamInfo, module_type: str) -> Matrix | None:
    """Return a parameter as a matrix (or stack of experts' matrices); ``None`` for biases and norms."""
    if len(param.shape) == _MATRIX_AXES:
        return Matrix(param.shape[0], param.shape[1])
    if param.experts and len(param.shape) == _STACK_AXES:
        stack, rows, columns = param.shape
        return Matrix(columns, rows, stack) if module_type in _TRANSPOSED else Matrix(rows, columns, stack)
    return None


def with_cache_dtype(count: PhaseCount, dtype: str, element_bytes: float) -> PhaseCount:
    """Return a count whose cache is kept in another type; scales of the cache are left out."""
    size = dtype_bytes(dtype)
    if size is None:
        return count
    ratio = size / element_bytes
    cache = {
        layer: replace(use, written_bytes=use.written_bytes * ratio, read_bytes=use.read_bytes * ratio)
        for layer, use in count.cache.items()
    }
    return replace(count, cache=cache)


def forget_weight_bytes(static: Static) -> None:
    """Clear all weight sizes: the checkpoint's format is unknown."""
    for phase in static.phases.values():
        phase.weight_bytes = None
        if phase.minimum is not None:
            phase.minimum.weight_bytes = None
        phase.intensity = None
    for module in static.modules:
        module.weight_bytes = {}
    static.scaling = None
    for name in ("weights", "total"):
        static.resident_bytes.pop(name, None)
    forget_weights_of_ranks(static.splits)


def forget_weights_of_ranks(splits: Sequence[Split]) -> None:
    """Clear what ranks hold and read; parameter counts and communication are kept."""
    for split in splits:
        split.replicated_bytes, split.read_bytes = None, {}
        for share in split.shares:
            share.weight_bytes = None
