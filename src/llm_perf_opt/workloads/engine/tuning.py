"""Settings that change how a built model runs, but not its result: layouts, modes, padding, copies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.schema import SdpaBackend, WeightFormat
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.process.tools import import_optional

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import Batch, Sample
    from llm_perf_opt.workloads.engine.engine import Engine

_NO_KERNEL = ("No viable backend for scaled_dot_product_attention", "No available kernel")
"""Messages of torch where none of the allowed implementations fits."""
_LANGUAGE = ("language_model", "lm_head")
"""Components that are no part of an encoder."""


def tune(engine: Engine) -> None:
    """Apply the configured settings; nothing is changed by default."""
    model, infer = engine.workload.model, engine.workload.infer
    if model.quantise_weights is not None:
        _quantise(engine.model, model.quantise_weights)
    if model.channels_last:
        _channels_last(engine.model)
    if model.decode_experts_implementation is not None:
        _decode_experts(engine, model.decode_experts_implementation)
    if model.prefill_experts_implementation is not None:
        _prefill_experts(engine, model.prefill_experts_implementation)
    if model.compile_vision:
        _compile_vision(engine)
    if infer.pad_to_multiple is not None:
        _pad(engine, infer.pad_to_multiple)
    if infer.pinned_inputs:
        _pin(engine)
    if infer.inference_mode:
        _inference_mode(engine)
    _add_phase_modes(engine)


def _add_phase_modes(engine: Engine) -> None:
    """Apply process-wide settings only around each phase, so that other engines in the process are not affected."""
    model = engine.workload.model
    for phase in engine.adapter.phases:
        if model.matmul_precision is not None:
            engine.add_phase_mode(phase, functools.partial(_matmul_precision, model.matmul_precision.value))
        if model.cudnn_benchmark:
            engine.add_phase_mode(phase, _cudnn_benchmark)
        if model.sdpa_backend is not None:
            engine.add_phase_mode(phase, functools.partial(_sdpa_backend, model.sdpa_backend))
    for name, count in engine.workload.phase_threads.items():
        engine.add_phase_mode(name, functools.partial(_threads, count))


def _quantise(model: Any, kind: WeightFormat) -> None:
    key = "model.quantise_weights"
    try:
        quantization: Any = import_optional("torchao.quantization")
    except ImportError as error:
        raise ConfigError(
            f"{key}={kind.value} needs torchao", hint="pip install torchao, or leave it out", key=key
        ) from error
    chosen = {
        WeightFormat.int8: quantization.Int8WeightOnlyConfig,
        WeightFormat.int4: quantization.Int4WeightOnlyConfig,
        WeightFormat.float8: quantization.Float8WeightOnlyConfig,
    }[kind]()
    quantization.quantize_(model, chosen)


@contextlib.contextmanager
def _matmul_precision(name: str) -> Iterator[None]:
    """Round products of float32 inside; a setting of the process, so it is restored for the other side of an experiment."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _sdpa_backend(kind: SdpaBackend) -> Iterator[None]:
    """Restrict ``scaled_dot_product_attention`` to one implementation inside."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = {
        SdpaBackend.math: SDPBackend.MATH,
        SdpaBackend.flash: SDPBackend.FLASH_ATTENTION,
        SdpaBackend.efficient: SDPBackend.EFFICIENT_ATTENTION,
        SdpaBackend.cudnn: SDPBackend.CUDNN_ATTENTION,
    }
    with sdpa_kernel(names[kind]):
        try:
            yield
        except RuntimeError as error:
            if not any(text in str(error) for text in _NO_KERNEL):
                raise
            raise ConfigError(
                f"model.sdpa_backend={kind.value} has no kernel for an attention of this model on this device",
                hint="choose another one, or leave it out",
                key="model.sdpa_backend",
            ) from error


@contextlib.contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    from torch.backends import cudnn

    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        yield
    finally:
        cudnn.benchmark = before


def _channels_last(model: Any) -> None:
    import torch

    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    if not convolutions:
        raise ConfigError(
            "model.channels_last=true: the model has no convolution",
            hint="leave it out",
            key="model.channels_last",
        )
    for module in convolutions:
        module.to(memory_format=torch.channels_last)


def _decode_experts(engine: Engine, name: str) -> None:
    _refuse_without_experts(engine.model, "model.decode_experts_implementation", name)
    adapter: Any = engine.adapter
    # A captured graph is made in the same mode, so it belongs to the adapter.
    adapter.decode_mode = functools.partial(_experts, name)


def _prefill_experts(engine: Engine, name: str) -> None:
    _refuse_without_experts(engine.model, "model.prefill_experts_implementation", name)
    engine.add_phase_mode("prefill", functools.partial(_experts, name, engine.model))


def _refuse_without_experts(model: Any, key: str, name: str) -> None:
    if not hasattr(model, "get_experts_implementation"):
        raise ConfigError(f"{key}={name}: the model has no choice of experts", hint="leave it out", key=key)


@contextlib.contextmanager
def _experts(name: str, model: Any) -> Iterator[None]:
    """Run every mixture of experts inside by the implementation of this name."""
    before = model.get_experts_implementation()
    parts = before if isinstance(before, Mapping) else {"": before}
    model.set_experts_implementation(
        {part: name if chosen is not None else None for part, chosen in parts.items()}
    )
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set torch's thread count inside; the previous value is restored."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compile_vision(engine: Engine) -> None:
    import torch

    if "vision" not in engine.adapter.phases:
        raise ConfigError(
            "model.compile_vision=true: the model sees nothing",
            hint="leave it out",
            key="model.compile_vision",
        )
    parts = _encoder_parts(engine)
    if not parts:
        raise ConfigError(
            f"model.compile_vision=true: adapter {engine.adapter.name} names no component of its encoder",
            hint="leave it out",
            key="model.compile_vision",
        )
    for module in parts:
        # The forward of each, and not the module: what hooks do around it (timing) would be compiled too, and again in
        # every pass. Nor all of them together: every new page shape would recompile everything.
        module.forward = torch.compile(module.forward, dynamic=False)


def _encoder_parts(engine: Engine) -> list[Any]:
    """Return the components of the encoder: all except the language model and its containers."""
    model: Any = engine.model
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    named = engine.adapter.components().items()
    found = [model.get_submodule(path) for label, path in named if label not in _LANGUAGE]
    return [part for part in found if all(module is not decoder for module in part.modules())]


def _pad(engine: Engine, multiple: int) -> None:
    adapter: Any = engine.adapter
    if not hasattr(adapter, "left_pad"):
        raise ConfigError(
            f"infer.pad_to_multiple: adapter {adapter.name} does not pad prompts",
            hint="leave it out",
            key="infer.pad_to_multiple",
        )
    if not getattr(adapter, "masks_padding", lambda: True)():
        raise ConfigError(
            "infer.pad_to_multiple: the model takes no mask and would read the padding",
            hint="leave it out",
            key="infer.pad_to_multiple",
        )
    left_pad: Callable[..., dict[str, Any]] = adapter.left_pad

    def padded(sequences: Sequence[Sequence[int]], device: str) -> dict[str, Any]:
        longest = max(len(sequence) for sequence in sequences)
        length = -(-longest // multiple) * multiple
        context = engine.adapter.context_tokens
        if length == longest or (context is not None and length >= context):
            return left_pad(sequences, device)
        # A row of the wanted length makes the others as long; it is dropped again.
        inputs = left_pad([*sequences, [adapter.padding_token_id()] * length], device)
        return {name: None if value is None else value[:-1] for name, value in inputs.items()}

    adapter.left_pad = padded


def _pin(engine: Engine) -> None:
    import torch

    if not engine.device.startswith("cuda"):
        raise ConfigError(
            "infer.pinned_inputs=true: inputs are not copied to a device here",
            hint="leave it out",
            key="infer.pinned_inputs",
        )
    adapter: Any = engine.adapter
    prepare = adapter.prepare

    def pinned(samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        batch: Batch = prepare(samples, "cpu", dtype)
        for name, value in batch.inputs.items():
            batch.inputs[name] = _copied(value, device)
        return batch

    adapter.prepare = pinned


def _copied(value: Any, device: str) -> Any:
    """Copy an input to the device, nested tensors included, each from page-locked memory."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)
    if isinstance(value, list | tuple):
        return type(value)(_copied(item, device) for item in value)
    if isinstance(value, MutableMapping):  # a processor's own kind stays that
        for name, item in value.items():
            value[name] = _copied(item, device)
    return value


def _inference_mode(engine: Engine) -> None:
    """Wrap the calls of a pass; tensors that outlive a call are used only under the same mode."""
    import torch

    plain = engine.run_prepared

    @functools.wraps(plain)
    def run_prepared(*given: Any, **named: Any) -> Any:
        with torch.inference_mode():
            return plain(*given, **named)

    engine.run_prepared = run_prepared  # type: ignore[method-assign]
