"""Loading of models with random weights, on the meta device, and from checkpoints, with actionable errors."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import read_document
from llm_perf_opt.hardware.accelerator import seeded
from llm_perf_opt.workloads.devices import is_out_of_memory
from llm_perf_opt.workloads.models.weights import borrow_weights, distributed_config, lender_kind, split
from llm_perf_opt.workloads.rank_group import in_group

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import ModelConfig

LOGGER = logging.getLogger("llm_perf_opt")
_BLOCK = 4_194_301
"""Random numbers drawn once; prime, so that the rows of a weight matrix do not repeat in step."""
_CANNOT_BE_BUILT = (
    ValueError, ImportError, LookupError, RuntimeError, TypeError, ArithmeticError, AttributeError, AssertionError,
)  # fmt: skip
"""What transformers and torch raise for dimensions that make no model: negative, zero, of the wrong type."""
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def implementation_kwargs(model: ModelConfig) -> dict[str, Any]:
    """Return the attention and experts choices as ``transformers`` arguments."""
    chosen = dict(
        zip(_IMPLEMENTATIONS, (model.attn_implementation, model.experts_implementation), strict=True)
    )
    return {key: value for key, value in chosen.items() if value is not None}


def build_meta(kind: Any, config: Any, dtype: torch.dtype, options: Mapping[str, Any]) -> torch.nn.Module:
    """Build a model without weights: shapes only."""
    import torch

    try:
        with torch.device("meta"):
            built: torch.nn.Module = kind._from_config(config, dtype=dtype, **options)
    except _CANNOT_BE_BUILT as error:
        keys = " ".join(f"model.{key}={value}" for key, value in options.items())
        raise ConfigError(
            f"the model cannot be built{' with ' + keys if keys else ''}: {_first_line(error)}",
            hint="check the dimensions (model.arch, config.json); "
            "use sdpa or eager attention, and grouped_mm, batched_mm or eager experts",
            key="model",
        ) from error
    return built.eval()


def build_random(
    kind: Any, config: Any, dtype: torch.dtype, device: str, seed: int, options: Mapping[str, Any]
) -> torch.nn.Module:
    """Build a model with random weights straight on the device, in its data type; the same seed gives the same weights.

    Weights are scaled so that activations stay near one through the layers: numbers stay finite in every data
    type, and the next token depends on the previous ones (a tiny constant scale would make all logits equal). In a group of
    ranks, every rank draws the whole model and keeps its part.
    """
    import torch

    model = build_meta(kind, config, dtype, options)
    if borrow_weights(model):
        return model
    model.to_empty(device=device)
    # Random draws of transformers must follow the seed too, and the caller's generator must not change.
    with torch.no_grad(), seeded(device, seed):
        _fill_random_weights(model, device, seed)
        for module in model.modules():
            module._is_hf_initialized = False
        # transformers sets norms, special parameters and the non-persistent buffers (RoPE); filled ones are marked.
        model.initialize_weights()
        model.tie_weights()
    return split(model) if in_group() else model.eval()


def _fill_random_weights(model: torch.nn.Module, device: str, seed: int) -> None:
    """Fill every parameter from one block of normal numbers: drawing billions would take a minute on a CPU."""

    doubled = _doubled_block(seed).to(device)
    scaled: dict[tuple[torch.dtype, float], torch.Tensor] = {}
    offset = 0
    for parameter, scale in _parameters_with_scale(model):
        if not parameter.is_floating_point() or not scale:
            parameter.zero_()
            continue
        flat = parameter.view(-1)
        parameter._is_hf_initialized = parameter.ndim > 1
        if flat.numel() < _BLOCK:
            flat.copy_(doubled[offset : offset + flat.numel()] * scale)
            offset = (offset + flat.numel() + 1) % _BLOCK
            continue
        # Few scales occur, so each is computed once, and filling a large weight is copying memory.
        source = scaled.get((parameter.dtype, scale))
        if source is None:
            source = scaled[parameter.dtype, scale] = (doubled * scale).to(parameter.dtype)
        for start in range(0, flat.numel(), _BLOCK):
            part = flat[start : start + _BLOCK]
            part.copy_(source[offset : offset + part.numel()])
        offset = (offset + flat.numel() + 1) % _BLOCK


def _doubled_block(seed: int) -> torch.Tensor:
    """Return the block twice, so that a weight may begin anywhere in it.

    Not cached: a block that stays would count as memory of the model.
    """
    import torch

    block = torch.randn(_BLOCK, generator=torch.Generator("cpu").manual_seed(seed))
    return torch.cat([block, block])


def _parameters_with_scale(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """Yield each parameter once with its standard deviation (0: constant, transformers decides)."""
    import torch

    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if isinstance(module, torch.nn.Embedding):
                yield parameter, 1.0
            elif parameter.ndim > 1:
                is_convolution = isinstance(module, torch.nn.modules.conv._ConvNd)
                fan_in = parameter[0].numel() if is_convolution else parameter.shape[-1]
                yield parameter, 1.0 / math.sqrt(max(1, fan_in))
            else:
                yield parameter, 0.0 if "bias" in name or "norm" in type(module).__name__.lower() else 1.0


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; errors name the file."""
    try:
        value = json.loads(read_document(path).decode("utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}",
            hint="give a checkpoint directory with a config.json",
            path=str(path),
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not valid JSON: {path}: {error}", hint="get the file of the checkpoint again", path=str(path)
        ) from error
    if not isinstance(value, dict):
        raise InputError(
            f"not a JSON object: {path}", hint="get the file of the checkpoint again", path=str(path)
        )
    return value


def checkpoint_dir(path: str) -> Path:
    """Return a local checkpoint directory, or raise with what is missing."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise InputError(
            f"model.path is not a directory: {path}",
            hint="give the directory that contains config.json and *.safetensors",
            path=path,
        )
    if not (directory / "config.json").is_file():
        raise InputError(
            f"no config.json in {directory}",
            hint="give the directory that contains config.json and *.safetensors",
            path=str(directory),
        )
    return directory


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a safetensors checkpoint, from the file headers alone."""
    from safetensors import SafetensorError, safe_open

    files = sorted(directory.glob("*.safetensors"))
    index = directory / "model.safetensors.index.json"
    listed = read_json(index).get("weight_map") if index.is_file() else None
    absent = sorted(set(listed.values()) - {file.name for file in files}) if isinstance(listed, dict) else []
    if absent:
        raise InputError(
            f"{directory} lacks weights files that its index names: {', '.join(absent[:3])}",
            hint="download or copy them too",
            path=str(directory),
        )
    if not files:
        raise InputError(
            f"no *.safetensors file in {directory}",
            hint="the checkpoint is incomplete, or has only .bin files, which are not loaded (pickle)",
            path=str(directory),
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as stream:
                for name in stream.keys():  # noqa: SIM118 - not a mapping
                    shapes[name] = tuple(stream.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"damaged or cut-off weights file {file}: {error}",
                hint="download or copy it again",
                path=str(file),
            ) from error
    return shapes


def load_pretrained(
    kind: Any, source: str, config: Any, dtype: torch.dtype, device: str, options: Mapping[str, Any]
) -> torch.nn.Module:
    """Load a checkpoint straight onto the device; a missing, unexpected or differently shaped tensor is an error.

    Tensors go from the file to the device one by one: the host never holds the whole model. In a group of ranks, each
    reads its own part of them.
    """
    from safetensors import SafetensorError

    lent = lender_kind()
    if lent is not None and not in_group():
        chosen = {name: options[name] for name in _IMPLEMENTATIONS if name in options}
        model = build_meta(lent, config, dtype, chosen)
        if borrow_weights(model):
            return model
    try:
        with _quiet_transformers(), _without_accelerate():
            # Mismatches are collected, not ignored: they are reported below together with the other two kinds.
            model, info = kind.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **(
                    {"distributed_config": distributed_config()}
                    if in_group()
                    else {"device_map": {"": device}}
                ),
                **options,
            )
    except SafetensorError as error:
        raise InputError(
            f"damaged or cut-off weights in {source}: {error}",
            hint="download or copy them again",
            path=source,
        ) from error
    except (OSError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise  # not an error of the checkpoint
        raise InputError(
            f"cannot load {source}: {_first_line(error)}",
            hint="check that the directory contains this architecture's weights",
            path=source,
        ) from error
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"cannot load {source} as configured: {_first_line(error)}",
            hint="check model.attn_implementation and model.experts_implementation",
            key="model",
        ) from error
    _check_keys(source, info)
    loaded: torch.nn.Module = model.eval() if in_group() else model.to(device).eval()
    return loaded


@contextlib.contextmanager
def _without_accelerate() -> Iterator[None]:
    """Let transformers load onto one device without the accelerate package, which it requires but does not use.

    The package is needed for models in several places, and those are not made here.
    """
    from transformers.integrations import accelerate as integration

    name = "is_accelerate_available"
    original = getattr(integration, name, None)
    if original is None or original():
        yield
        return
    setattr(integration, name, lambda *_args, **_kwargs: True)
    try:
        yield
    finally:
        setattr(integration, name, original)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep the library's own progress bar and load report off the terminal; our errors have the same information in one line."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def _check_keys(source: str, info: Mapping[str, Any]) -> None:
    wrong = {
        kind: sorted(map(str, info.get(f"{kind}_keys") or ()))
        for kind in ("missing", "unexpected", "mismatched")
    }
    wrong = {kind: keys for kind, keys in wrong.items() if keys}
    if wrong:
        text = "; ".join(
            f"{len(keys)} {kind} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})"
            for kind, keys in wrong.items()
        )
        raise InputError(
            f"the checkpoint does not fit the architecture: {source}: {text}",
            hint="choose the adapter of this checkpoint (model.adapter), or another checkpoint",
            path=source,
            **wrong,
        )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def remote_code_allowed(model: ModelConfig) -> bool:
    """Whether a checkpoint's own code may run: only on request, and only from a pinned source."""
    if not model.trust_remote_code:
        return False
    pinned = model.revision is not None and _COMMIT.fullmatch(model.revision) is not None
    local = model.path is not None and Path(model.path).expanduser().is_dir()
    if not (pinned or local):
        raise ConfigError(
            "model.trust_remote_code=true would run code that can change under you",
            hint="give a local directory in model.path, or pin model.revision to a full commit hash (40 hex digits)",
            key="model.trust_remote_code",
        )
    return True


# Architecture dictionaries (``model.arch``) into transformers configurations; a misspelt dimension is an error.


_COMMON_KEYS = frozenset(
    {"model_type", "dtype", "architectures", "first_k_dense_replace", "rope_theta", "rope_scaling"}
)
"""Accepted everywhere: what is no dimension, and older spellings that transformers still reads."""


def make_config(
    kind: Any, arch: Mapping[str, Any], document: Mapping[str, Any] | None = None, *, key: str = "model.arch"
) -> Any:
    """Build the transformers config ``kind`` from ``arch``; raise :class:`ConfigError` for unknown keys.

    ``document`` is a configuration file's content that ``arch`` changes; files may contain obsolete keys.
    """
    from huggingface_hub.errors import StrictDataclassError

    plain = {str(name): value for name, value in arch.items()}
    _check_arch_keys(
        kind, {name: value for name, value in plain.items() if document is None or name not in document}, key
    )
    try:
        return kind.from_dict({**(document or {}), **plain})
    except (TypeError, ValueError, StrictDataclassError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(
            f"{key} is not a valid {kind.__name__}: {message}",
            hint="see the presets under conf/model",
            key=key,
        ) from error


def _check_arch_keys(kind: Any, arch: Mapping[str, Any], key: str) -> None:
    """Reject unknown keys, at every level, with the nearest known one."""
    nested: Mapping[str, Any] = getattr(kind, "sub_configs", None) or {}
    known = (
        {field.name for field in dataclasses.fields(kind)}
        | set(nested)
        | set(getattr(kind, "attribute_map", {}))
        | _COMMON_KEYS
    )
    for name, value in arch.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"unknown key {key}.{name}",
                hint=f"did you mean {key}.{near[0]}?" if near else f"{kind.__name__} has no such dimension",
                key=f"{key}.{name}",
            )
        child = nested.get(name)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(child):
            _check_arch_keys(child, value, f"{key}.{name}")


def require(condition: bool, message: str, *, key: str, hint: str) -> None:
    """Raise :class:`ConfigError` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message, hint=hint, key=key)
