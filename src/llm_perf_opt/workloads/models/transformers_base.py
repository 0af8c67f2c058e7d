"""Common base of transformers adapters: padding, positions, caches, the prefill and decode calls."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from llm_perf_opt.config.checks import check_static_cache
from llm_perf_opt.config.schema import CacheKind, CompileMode, Weights
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.workloads.base import Batch, ModelAdapter, Phase, PhaseShapes, Reference, StaticCall
from llm_perf_opt.workloads.models.caches import OwnState, StateProtocol, state_bytes, state_protocol
from llm_perf_opt.workloads.models.decode_step import (
    CudaGraphs,
    FixedStep,
    StepInputs,
    cache_room,
    refuse_without_graphs,
)

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig


# State shared by the steps of one answer.


@dataclass(slots=True)
class _DecodePlan:
    """Everything a decode step needs besides the token, made before the loop so that a step only takes slices."""

    positions: torch.Tensor
    """``[…, batch, new_tokens]``: position of each fed-back token; models with several axes of positions have one more in front."""
    mask: torch.Tensor | None
    """``[batch, prompt + new_tokens]`` of ones where a key counts; ``None`` when nothing is padded."""
    fixed_size: bool
    """Static caches need a mask of constant size, marked step by step."""
    fixed: FixedStep | None = None
    """Inputs at fixed addresses, for a step that is compiled or captured."""


# Reference tokens and logits of the model's own ``generate()``.


class _Generates(Protocol):
    """Required interface of an adapter."""

    config: ModelConfig

    def padding_token_id(self) -> int:
        """Return the id used for padding."""

    def generate(self, model: Any, batch: Batch, chosen: Any) -> Any:
        """Run the model's own ``generate()`` on a batch."""


def _greedy_reference(
    adapter: _Generates,
    model: torch.nn.Module,
    batch: Batch,
    count: int,
    *,
    stop_ids: Sequence[int],
    no_repeat_ngram_size: int,
) -> Reference:
    """Return the first ``count`` greedy tokens of transformers' ``generate()``, ignoring the checkpoint's sampling settings.

    It uses its usual growing cache, so that the tokens do not depend on the cache that is checked.
    """
    from transformers import GenerationConfig

    chosen = GenerationConfig(
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=adapter.padding_token_id(),
        no_repeat_ngram_size=no_repeat_ngram_size or None,
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    # Unset options come from the checkpoint's generation settings, which may sample or penalise.
    own, generating = getattr(model, "generation_config", None), cast("Any", model)
    generating.generation_config = chosen
    try:
        out = adapter.generate(generating, batch, chosen)
    finally:
        generating.generation_config = own
    rows: list[list[int]] = out.sequences[:, batch.inputs["input_ids"].shape[1] :].tolist()
    return Reference(rows, list(out.logits))


# Mixtures of experts: whether a model is one, and how its experts run while it decodes.


def _has_routed_experts(config: Any) -> bool:
    """Whether a language model's transformers configuration has routed experts."""
    return any(
        getattr(config, name, None) for name in ("num_experts", "n_routed_experts", "num_local_experts")
    )


@contextlib.contextmanager
def _batched_experts(model: Any) -> Iterator[None]:
    """Run every mixture of experts inside as batched products."""
    before = model.get_experts_implementation()
    model.set_experts_implementation(
        {part: "batched_mm" if chosen is not None else None for part, chosen in before.items()}
    )
    try:
        yield
    finally:
        model.set_experts_implementation(before)


_MOST_COMPILED_SHAPES = 64
"""Of decode steps of one run; caches come in eight lengths per doubling."""


class TransformersAdapter(ModelAdapter):
    """Base of the built-in adapters. Subclasses define the model and the conversion of requests to token ids."""

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        super().__init__(model, infer)
        self._compiled: Any = None
        self._compiled_prefill: tuple[Any, Any] | None = None
        self._state: StateProtocol | None = None
        self._graphs: CudaGraphs | None = None
        self._captured: dict[tuple[int, int], FixedStep] = {}
        if model.weights is Weights.real and model.path is None:
            raise ConfigError(
                "model.weights=real needs model.path",
                hint="give the checkpoint directory, or use model.weights=random",
                key="model.weights",
            )
        check_static_cache(model)

    def weights(self) -> Literal["real", "random"]:
        """Describe which weights ``build`` makes."""
        wanted = self.config.weights
        return (
            "real"
            if wanted is Weights.real or (wanted is Weights.auto and self.config.path is not None)
            else "random"
        )

    @abstractmethod
    def text_config(self) -> Any:
        """Return the language model's transformers configuration."""

    @abstractmethod
    def padding_token_id(self) -> int:
        """Return the id used for padding; masked, so any valid id works."""

    def config_document(self) -> Mapping[str, Any]:
        """Return the language model's dimensions."""
        document: Mapping[str, Any] = self.text_config().to_dict()
        return document

    @property
    def context_tokens(self) -> int | None:
        """Maximum number of positions of the model."""
        found = getattr(self.text_config(), "max_position_embeddings", None)
        return None if found is None else int(found)

    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence."""
        found = getattr(self.text_config(), "eos_token_id", None)
        if found is None:
            return ()
        return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)

    def left_pad(self, sequences: Sequence[Sequence[int]], device: str) -> dict[str, Any]:
        """Stack prompts of different lengths, padded on the left as decoding needs."""
        import torch

        length = max(len(sequence) for sequence in sequences)
        pad = self.padding_token_id()
        ids = torch.tensor([[pad] * (length - len(sequence)) + list(sequence) for sequence in sequences])
        padded = any(len(sequence) < length for sequence in sequences)
        mask = torch.tensor([[0] * (length - len(sequence)) + [1] * len(sequence) for sequence in sequences])
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        return {
            "input_ids": ids.to(device),
            "mask": mask.to(device) if padded else None,
            "positions": positions.to(device),
        }

    def make_cache(self, model: torch.nn.Module, batch: Batch, max_new_tokens: int) -> Any:
        """Make an empty cache for the prompt and ``max_new_tokens``, and prepare the decode steps."""
        import torch
        from transformers import DynamicCache, StaticCache

        ids = batch.inputs["input_ids"]
        count, length = ids.shape
        mask = batch.inputs["mask"]
        static = self.config.cache is CacheKind.static
        steps = torch.arange(1, max_new_tokens + 1, device=ids.device)
        positions = batch.inputs["positions"][..., -1:] + steps
        prompt = mask if mask is not None else ids.new_ones(ids.shape)
        if self._is_fixed():
            fixed = self._fixed_step(model, count, cache_room(length + max_new_tokens), ids.device)
            fixed.inputs.begin(prompt)
            batch.inputs["plan"] = _DecodePlan(positions, fixed.inputs.mask, True, fixed)
            return fixed.cache
        whole: torch.Tensor | None = None
        if static or mask is not None:
            # A static cache exposes keys that are not written yet: their mask stays 0 until the step that writes them.
            whole = torch.cat([prompt, prompt.new_full((count, max_new_tokens), 0 if static else 1)], dim=1)
        batch.inputs["plan"] = _DecodePlan(positions, whole, static)
        if self.state_of(model).made_by_model:
            self._refuse_cache_dtype("this model makes its state itself")
            return self.new_state(model)
        config = self.text_config()
        if static:
            return self.narrowed(StaticCache(config=config, max_cache_len=length + max_new_tokens))
        if self.config.cache is CacheKind.preallocated:
            from llm_perf_opt.workloads.models.cache_layers import preallocated_cache

            return self.narrowed(preallocated_cache(config, length + max_new_tokens))
        return self.narrowed(DynamicCache(config=config))

    def narrowed(self, cache: Any) -> Any:
        """Make a cache store keys and values in ``model.cache_dtype``, if set."""
        if self.config.cache_dtype is None:
            return cache
        from llm_perf_opt.workloads.models.cache_layers import keep_in

        return keep_in(cache, self.config.cache_dtype)

    def _refuse_cache_dtype(self, reason: str) -> None:
        if self.config.cache_dtype is not None:
            raise ConfigError(
                f"model.cache_dtype={self.config.cache_dtype.value}: {reason}",
                hint="leave it out",
                key="model.cache_dtype",
            )

    def _is_fixed(self) -> bool:
        return self._compiled is not None or self._graphs is not None

    def _fixed_step(
        self, model: torch.nn.Module, batch_size: int, room: int, device: torch.device
    ) -> FixedStep:
        """Return inputs and an empty cache of a shape; those of a graph are kept, because their addresses are fixed.

        The first pass of a shape runs without a graph and lets the model allocate its cache; the second captures.
        """
        from transformers import StaticCache

        if (known := self._captured.get((batch_size, room))) is not None:
            if known.replay is None and self._graphs is not None:
                self._capture(model, known)
            known.cache.reset()
            return known
        made = FixedStep(
            StepInputs.empty(batch_size, room, device),
            self.narrowed(StaticCache(config=self.text_config(), max_cache_len=room)),
        )
        if self._graphs is not None:
            self._captured[batch_size, room] = made
        return made

    def _capture(self, model: torch.nn.Module, fixed: FixedStep) -> None:
        """Capture the step on an empty cache, in the context the decode loop runs in."""
        graphs = self._graphs
        if graphs is None:
            return
        fixed.cache.reset()
        fixed.inputs.begin(fixed.inputs.mask.new_ones(fixed.inputs.mask.shape[0], 1))
        with self.decode_mode(model):
            fixed.replay = graphs.capture(lambda: self._run_fixed(model, fixed), fixed.cache)

    def _run_fixed(self, model: torch.nn.Module, fixed: FixedStep) -> torch.Tensor:
        inputs = fixed.inputs
        logits: torch.Tensor = self.forward(
            model,
            fixed.cache,
            compiled=self._compiled,
            input_ids=inputs.tokens,
            attention_mask=inputs.mask,
            position_ids=inputs.positions,
        ).logits
        return logits[:, -1]

    def state_of(self, model: torch.nn.Module) -> StateProtocol:
        """Return how state is passed to this model."""
        if self._state is None:
            self._state = state_protocol(type(model), self.text_config().model_type)
        return self._state

    def new_state(self, model: torch.nn.Module) -> Any:
        """Create the initial state of a prefill: an empty growing cache, or room for the model's own state."""
        from transformers import DynamicCache

        return OwnState() if self.state_of(model).made_by_model else DynamicCache(config=self.text_config())

    def prefill_inputs(self, batch: Batch, vision: Any) -> dict[str, Any]:
        """Return further keyword arguments of the prefill call (image features)."""
        return {}

    def prefill(self, model: torch.nn.Module, batch: Batch, vision: Any, cache: Any) -> torch.Tensor:
        """Run the prompt; fill ``cache``; return logits of the last position, ``[batch, vocab]``."""
        plan: _DecodePlan = batch.inputs["plan"]
        length = batch.inputs["input_ids"].shape[1]
        with self._in_compiled_prefill():
            logits: torch.Tensor = self.forward(
                model,
                cache,
                input_ids=batch.inputs["input_ids"],
                attention_mask=plan.mask[:, :length] if plan.mask is not None else None,
                position_ids=batch.inputs["positions"],
                logits_to_keep=1,
                **self.prefill_inputs(batch, vision),
            ).logits
        return logits[:, -1]

    @contextlib.contextmanager
    def _in_compiled_prefill(self) -> Iterator[None]:
        """Let the decoder run its compiled forward inside; decode steps keep their own."""
        if self._compiled_prefill is None:
            yield
            return
        decoder, compiled = self._compiled_prefill
        before = vars(decoder).get("forward")
        decoder.forward = compiled
        try:
            yield
        finally:
            if before is None:
                del decoder.forward
            else:
                decoder.forward = before

    def forward(self, model: torch.nn.Module, state: Any, *, compiled: Any = None, **inputs: Any) -> Any:
        """Call the model with its state, keep the returned state, return its output."""
        protocol = self.state_of(model)
        call = compiled or model
        output = call(**protocol.named({**inputs, "use_cache": True}), **protocol.inputs(state))
        protocol.keep(state, output)
        return output

    def decode_step(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run one more token per sequence; ``step`` 0 feeds the first generated token back."""
        plan: _DecodePlan = batch.inputs["plan"]
        if plan.fixed is not None:
            column = batch.inputs["input_ids"].shape[1] + step
            plan.fixed.inputs.load(tokens, plan.positions[:, step : step + 1], column)
            return (
                plan.fixed.replay() if plan.fixed.replay is not None else self._run_fixed(model, plan.fixed)
            )
        mask = plan.mask
        if mask is not None:
            seen = batch.inputs["input_ids"].shape[1] + step + 1
            if plan.fixed_size:
                mask[:, seen - 1] = 1
            else:
                mask = mask[:, :seen]
        logits: torch.Tensor = self.forward(
            model,
            cache,
            input_ids=tokens,
            attention_mask=mask if self.state_of(model).masks_decode else None,
            position_ids=plan.positions[..., step : step + 1],
        ).logits
        return logits[:, -1]

    def decode_several(
        self, model: torch.nn.Module, batch: Batch, tokens: torch.Tensor, step: int, cache: Any
    ) -> torch.Tensor:
        """Run the last token and the draft tokens after it in one pass; return the logits of each."""
        plan: _DecodePlan = batch.inputs["plan"]
        self.refuse_uncut_cache(cache)
        count = tokens.shape[1]
        seen = batch.inputs["input_ids"].shape[1] + step + count
        logits: torch.Tensor = self.forward(
            model,
            cache,
            input_ids=tokens,
            attention_mask=None if plan.mask is None else plan.mask[:, :seen],
            position_ids=plan.positions[..., step : step + count],
        ).logits
        return logits

    def crop_cache(self, cache: Any, count: int) -> None:
        """Remove the last ``count`` positions."""
        if count > 0:
            cache.crop(-count)

    def refuse_uncut_cache(self, cache: Any) -> None:
        """Reject state that cannot be cut back to an earlier position: windows and recurrent states have lost it."""
        from transformers.cache_utils import DynamicLayer

        from llm_perf_opt.workloads.models.cache_layers import PreallocatedLayer

        if any(
            type(layer) not in (DynamicLayer, PreallocatedLayer) for layer in getattr(cache, "layers", [None])
        ):
            raise ConfigError(
                f"a '{self.text_config().model_type}' model keeps a window or a state that cannot be cut back after a wrong guess",
                hint="use infer.prompt_lookup_tokens=0 infer.draft_tokens=0",
                key="infer.prompt_lookup_tokens",
            )

    def generate_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return further keyword arguments of ``generate()`` (images)."""
        return {}

    def _generate_cache(self) -> dict[str, Any]:
        """Return the cache ``generate()`` is to use; empty if it creates the same one itself."""
        from transformers import DynamicCache

        if self.config.cache_dtype is None:
            return {}
        return {"past_key_values": self.narrowed(DynamicCache(config=self.text_config()))}

    def generate(self, model: Any, batch: Batch, chosen: Any) -> Any:
        """Run the model's own ``generate()`` on a batch; the tokens it returns begin with ``input_ids``."""
        ids, mask = batch.inputs["input_ids"], batch.inputs["mask"]
        return model.generate(
            input_ids=ids,
            attention_mask=ids.new_ones(ids.shape) if mask is None else mask,
            generation_config=chosen,
            **self._generate_cache(),
            **self.generate_inputs(batch),
        )

    def reference(
        self,
        model: torch.nn.Module,
        batch: Batch,
        count: int,
        *,
        stop_ids: Sequence[int],
        no_repeat_ngram_size: int,
    ) -> Reference | None:
        """Return the first greedy tokens of transformers' ``generate()``, ignoring the checkpoint's sampling settings."""
        return _greedy_reference(
            self, model, batch, count, stop_ids=stop_ids, no_repeat_ngram_size=no_repeat_ngram_size
        )

    def decode_mode(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return the context ``generate()`` decodes in: on GPUs it switches the experts to one batched product.

        A compiled step needs batched products everywhere. They are switched on for decode alone: in a prefill, where
        every position copies its experts' weights, they take many times as long.
        """
        if self.config.experts_implementation is not None:
            return contextlib.nullcontext()
        if self._compiles_batched_experts():
            return _batched_experts(model)
        # transformers has no public name for this; without it a MoE model would decode slower here than in generate().
        switch = getattr(model, "_optimize_model_for_decode", None)
        mode: contextlib.AbstractContextManager[None] = (
            contextlib.nullcontext() if switch is None else switch()
        )
        return mode

    def notes(self) -> Sequence[str]:
        """Return notes on side effects of ``model.compile`` and ``model.cuda_graphs``."""
        if not self._compiles_batched_experts():
            return []
        key, done = ("compile", "compiled") if self.config.compile else ("cuda_graphs", "captured")
        return [
            f"model.{key}=true: the experts run as batched products (batched_mm) in decode, because grouped products cannot be "
            f"{done}; prefill keeps the model's own. Choose for both with model.experts_implementation."
        ]

    def _compiles_batched_experts(self) -> bool:
        wanted = self.config.compile or self.config.cuda_graphs
        return wanted and self.config.experts_implementation is None and self.is_mixture()

    def decode_shape(self, batch: Batch, max_new_tokens: int) -> tuple[int, ...]:
        """Return sequences and length of the cache: prompts of several lengths share one."""
        return (len(batch.sample_ids), cache_room(batch.prompt_tokens + max_new_tokens))

    def compile_decode(self, model: torch.nn.Module) -> None:
        """Compile the decode step (``model.compile``). The prefill stays eager: its shape changes with every prompt."""
        import torch
        from torch import _dynamo

        # Beyond its limit torch runs the step uncompiled, and only logs it.
        config: Any = _dynamo.config
        config.recompile_limit = max(config.recompile_limit, _MOST_COMPILED_SHAPES)
        self._compiled = torch.compile(model.forward, dynamic=False, options=self._compile_options())

    def compile_prefill(self, model: torch.nn.Module) -> None:
        """Compile the decoder for the prefill; the head and the timing of components stay outside.

        Lengths are traced as a variable from the second one on, so that prompts of many lengths do not compile each.
        """
        import torch

        whole: Any = model
        decoder = whole.get_decoder() if hasattr(whole, "get_decoder") else None
        if decoder is None or decoder is model:
            super().compile_prefill(model)
        else:
            self._compiled_prefill = (decoder, torch.compile(decoder.forward))

    def _compile_options(self) -> dict[str, Any] | None:
        """Return inductor's options: those of ``model.compile_mode``, and freezing; torch takes a mode or options, not both."""
        from torch import _inductor

        mode = self.config.compile_mode
        options = (
            {}
            if mode is CompileMode.default
            else dict(_inductor.list_mode_options(mode.value.replace("_", "-")))
        )
        if self.config.compile_freezing:
            options["freezing"] = True
        return options or None

    def graph_decode(self, model: torch.nn.Module, device: str) -> None:
        """Capture the decode step as CUDA graphs (``model.cuda_graphs``), one for each shape, in the warm-up."""
        refuse_without_graphs(device)
        self._graphs = CudaGraphs(device)

    def calls_on_state(
        self, model: torch.nn.Module, run: Callable[[Any, int], object], shapes: PhaseShapes
    ) -> dict[Phase, Callable[[], object]]:
        """Return prefill and decode for counting; decode starts from the state after a prefill of the context.

        No cache is shaped by hand: what a layer keeps (keys of one head, a window, a recurrent state) is defined by
        the model.
        """

        def after_prefill() -> Any:
            state = self.new_state(model)
            run(state, shapes.context_tokens)
            return state

        def held(state: Any) -> Mapping[str, float]:
            return state_bytes(model, state)

        return {
            "prefill": StaticCall(
                lambda: self.new_state(model), lambda state: run(state, shapes.prompt_tokens), held
            ),
            "decode": StaticCall(after_prefill, lambda state: run(state, 1), held),
        }

    def options(self) -> Mapping[str, Any]:
        """Return attention and experts choices."""
        from llm_perf_opt.workloads.models.loading import implementation_kwargs

        return implementation_kwargs(self.config)

    def is_mixture(self) -> bool:
        """Whether the language model has routed experts."""
        return _has_routed_experts(self.text_config())
