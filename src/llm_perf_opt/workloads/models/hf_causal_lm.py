"""Any transformers decoder: a checkpoint, or random weights from a configuration file, a preset or a dictionary."""

from __future__ import annotations

import difflib
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.config.schema import CacheKind
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Batch, Phase, PhaseShapes, Sample
from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.caches import refuse_batches, refuse_static_cache, state_protocol
from llm_perf_opt.workloads.models.loading import make_config
from llm_perf_opt.workloads.models.meta import nothing_is_padded, spread_evenly
from llm_perf_opt.workloads.models.model_types import (
    check_dimensions,
    end_token_ids,
    known_type,
    modelopt_quantisation,
    named_config,
    random_tokenizer,
    refuse_model_type,
    refuse_other_than_decoders,
    templated_ids,
)
from llm_perf_opt.workloads.models.processors import load_part
from llm_perf_opt.workloads.models.transformers_base import TransformersAdapter
from llm_perf_opt.workloads.models.weights import reason_not_split

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig

_DEFAULT_PROMPT_TOKENS = 512
"""Of a typical request, for static counts before any prompt is known."""


class HfCausalLmAdapter(TransformersAdapter):
    """A text model of transformers' ``AutoModelForCausalLM``."""

    name = "hf_causal_lm"
    phases: tuple[Phase, ...] = ("prefill", "decode")
    auto_name: ClassVar[str] = "AutoModelForCausalLM"
    """Class of transformers that chooses the model class."""
    splits: ClassVar[bool] = True
    """Whether transformers' tensor-parallel plan covers the model; it does for text decoders only."""

    def __init__(self, model: ModelConfig, infer: InferConfig) -> None:
        super().__init__(model, infer)
        self._remote_code = loading.remote_code_allowed(model)
        sources = [key for key in ("path", "config_name") if getattr(model, key) is not None]
        if len(sources) == 2:
            raise ConfigError(
                "model.path and model.config_name are both given",
                hint="a checkpoint has its own configuration: leave model.config_name out",
                key="model.config_name",
            )
        if not sources and "model_type" not in model.arch:
            raise ConfigError(
                "no model given",
                hint="set model.path=CHECKPOINT, model.config_name=CONFIG_JSON_OR_PRESET, or model.arch.model_type and its dimensions",
                key="model.path",
            )
        if model.arch and self.weights() == "real":
            raise ConfigError(
                "model.arch cannot change the dimensions of real weights",
                hint="use model.weights=random with model.path to vary them, or leave model.arch out",
                key="model.arch",
            )

    @property
    def architecture(self) -> str:
        """Name of the model class."""
        listed = getattr(self.text_config(), "architectures", None)
        return str(listed[0]) if listed else f"{self._whole_config.model_type}"

    def components(self) -> Mapping[str, str]:
        """Map component labels to module paths: the decoder stack and the head, independent of the class's names."""
        return self._components

    @functools.cached_property
    def _components(self) -> Mapping[str, str]:
        import torch

        model = self.build("meta", torch.bfloat16)
        base = model.base_model_prefix
        head = model.get_output_embeddings()
        paths = {id(module): path for path, module in model.named_modules()}
        found = {"language_model": base} if base and hasattr(model, base) else {}
        if head is not None and id(head) in paths:
            found["lm_head"] = paths[id(head)]
        return found

    @functools.cached_property
    def _whole_config(self) -> Any:
        from transformers import CONFIG_MAPPING, AutoConfig

        model = self.config
        if model.path is not None:
            config = self._checkpoint_config(AutoConfig)
        else:
            document = dict(named_config(model.config_name)) if model.config_name is not None else {}
            kind = model.arch.get("model_type", document.get("model_type"))
            if kind not in CONFIG_MAPPING:
                near = difflib.get_close_matches(str(kind), list(CONFIG_MAPPING.keys()), n=1)
                raise ConfigError(
                    f"unknown model_type '{kind}'",
                    hint=f"did you mean {near[0]}?" if near else "use a model type of transformers",
                    key="model.arch.model_type",
                )
            return make_config(CONFIG_MAPPING[kind], model.arch, document)
        return make_config(type(config), model.arch, config.to_dict()) if model.arch else config

    def _checkpoint_config(self, auto: Any) -> Any:
        from huggingface_hub.errors import StrictDataclassError

        source = str(self.config.path)
        local = Path(source).expanduser()
        if local.exists() or source.startswith(("/", ".", "~")):
            source = str(loading.checkpoint_dir(source))
            document = loading.read_json(Path(source) / "config.json")
            check_dimensions(document, Path(source) / "config.json")
            if (
                document.get("auto_map")
                and not self._remote_code
                and not known_type(document.get("model_type"))
            ):
                raise ConfigError(
                    f"{source} needs code of its own (model_type '{document.get('model_type')}')",
                    hint="read that code, then set model.trust_remote_code=true",
                    key="model.trust_remote_code",
                )
        try:
            return auto.from_pretrained(
                source, revision=self.config.revision, trust_remote_code=self._remote_code
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, StrictDataclassError) as error:
            raise InputError(
                f"cannot read the configuration of {source}: {' '.join(str(error).split())[:300]}",
                hint="give a checkpoint directory with a config.json that transformers knows",
                path=source,
            ) from error

    def text_config(self) -> Any:
        """Return the language model's configuration."""
        return self._whole_config.get_text_config()

    def quantization_config(self) -> Mapping[str, Any] | None:
        """Return the checkpoint's ``quantization_config``; composite models keep it at the top or with the text model."""
        for config in (self._whole_config, self.text_config()):
            found = getattr(config, "quantization_config", None)
            if found is not None:
                plain = found if isinstance(found, Mapping) else found.to_dict()
                return {str(key): value for key, value in plain.items()}
        return (
            None if self.config.path is None else modelopt_quantisation(Path(self.config.path).expanduser())
        )

    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence: those of generation_config.json first, as ``generate()`` does."""
        if self.config.path is not None:
            file = Path(self.config.path).expanduser() / "generation_config.json"
            found = loading.read_json(file).get("eos_token_id") if file.is_file() else None
            if found is not None:
                return end_token_ids(found, file)
        return super().eos_token_ids()

    def padding_token_id(self) -> int:
        """Return the configured padding id, or end-of-sequence, or 0: the first that the model has an embedding for.

        Tokenizers may have padding tokens that their models lack, and configurations of a smaller vocabulary keep
        the end token of the larger one.
        """
        config = self.text_config()
        found = (getattr(config, "pad_token_id", None), *self.eos_token_ids())
        return next((int(i) for i in found if i is not None and 0 <= i < config.vocab_size), 0)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        if self.config.path is None:
            return random_tokenizer(self.text_config())
        from transformers import AutoTokenizer

        return load_part(
            AutoTokenizer,
            self.config,
            remote_code=self._remote_code,
            what="tokenizer",
            files="tokenizer.json and tokenizer_config.json",
        )

    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode generated tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def prompt_ids(self, sample: Sample) -> list[int]:
        """Return the token ids of one request: synthetic, from a chat template, or plain."""
        if sample.synthetic_tokens is not None:
            chosen = not sample.extra.get("default_length", False)
            length = sample.synthetic_tokens
            return self._synthetic_ids(sample.id, length if chosen else self._length_within_context(length))
        if sample.prompt is None:
            raise InputError(
                f"sample {sample.id} has no prompt", hint="use a data set of prompts: dataset=prompts"
            )
        tokenizer = self._tokenizer
        if self.infer.chat_template and getattr(tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": sample.prompt}]
            ids = templated_ids(tokenizer, chat, self.config.path)
        else:
            ids = (
                tokenizer(sample.prompt)["input_ids"]
                if callable(tokenizer)
                else self._plain_ids(sample.prompt)
            )
        if not ids:
            raise InputError(f"the prompt of sample {sample.id} is empty", hint="write some text")
        return [int(index) for index in ids]

    def _plain_ids(self, prompt: str) -> list[int]:
        """Put begin-of-sequence first, as most real tokenizers do."""
        begin = getattr(self.text_config(), "bos_token_id", None)
        ids: list[int] = self._tokenizer.encode(prompt)
        return ids if begin is None else [int(begin), *ids]

    def _synthetic_ids(self, name: str, count: int) -> list[int]:
        """Draw ids of ordinary tokens, the same for the same sample."""
        import torch

        special = set(self.eos_token_ids()) | {self.padding_token_id()}
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode("utf-8", errors="surrogateescape")))
        drawn = torch.randint(0, self.text_config().vocab_size, (count,), generator=generator).tolist()
        ordinary = next(index for index in range(len(special) + 1) if index not in special)
        return [ordinary if index in special else index for index in drawn]

    def prepare(self, samples: Sequence[Sample], device: str, dtype: torch.dtype) -> Batch:
        """Tokenise and pad the prompts."""
        sequences = [self.prompt_ids(sample) for sample in samples]
        limit, vocabulary = self.context_tokens, self.text_config().vocab_size
        for sample, sequence in zip(samples, sequences, strict=True):
            if limit is not None and len(sequence) >= limit:
                raise InputError(
                    f"sample {sample.id} has {len(sequence)} tokens, the model's context is {limit}",
                    hint="shorten the prompt or dataset.synthetic_tokens",
                )
            if max(sequence) >= vocabulary:
                raise InputError(
                    f"sample {sample.id} has token {max(sequence)}, the model knows {vocabulary}",
                    hint="the tokenizer does not belong to this model",
                )
        lengths = [len(sequence) for sequence in sequences]
        if len(set(lengths)) > 1 and not self.masks_padding():
            raise InputError(
                f"prompts of {min(lengths)} to {max(lengths)} tokens in one batch: a '{self._whole_config.model_type}' model"
                " takes no mask and would read the padding",
                hint="use infer.batch_size=1, or prompts of one length (dataset.synthetic_tokens)",
            )
        inputs = self.left_pad(sequences, device)
        return Batch(
            [sample.id for sample in samples],
            inputs,
            int(inputs["input_ids"].shape[1]),
            0,
            {"prompt_tokens": lengths, "padded": inputs["mask"] is not None},
        )

    def why_not_split(self, ranks: int) -> str | None:
        """Return why the model cannot be split over ranks."""
        return reason_not_split(self.text_config(), ranks) if self.splits else super().why_not_split(ranks)

    def build(self, device: str, dtype: torch.dtype) -> torch.nn.Module:
        """Make the model: real weights, random weights, or (``device='meta'``) none."""
        import transformers

        config, options = self._whole_config, dict(self.options())
        if self.weights() == "real" and device != "meta":
            source = str(self.config.path)
            if Path(source).expanduser().is_dir():
                source = str(Path(source).expanduser())
                loading.tensor_shapes(Path(source))
            options["trust_remote_code"] = self._remote_code
            self._model_class(config)  # rejects unsupported models before their weights are read
            auto = getattr(transformers, self.auto_name)
            return loading.load_pretrained(
                auto, source, config, dtype, device, {**options, "revision": self.config.revision or "main"}
            )
        kind = self._model_class(config)
        if kind.config_class is getattr(config, "sub_configs", {}).get("text_config"):
            config = (
                config.get_text_config()
            )  # the text part of a vision-language model, as in the Auto class
        if device == "meta":
            return loading.build_meta(kind, config, dtype, options)
        return loading.build_random(kind, config, dtype, device, self.config.seed, options)

    def _model_class(self, config: Any) -> Any:
        import transformers
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        reference = (getattr(config, "auto_map", None) or {}).get(self.auto_name)
        if self._remote_code and reference is not None:
            return get_class_from_dynamic_module(
                reference, str(self.config.path), revision=self.config.revision
            )
        refuse_model_type(config.model_type, self.name, is_decoder=getattr(config, "is_decoder", None))
        known = getattr(transformers, self.auto_name)._model_mapping
        if type(config) not in known:
            raise ConfigError(
                f"a '{config.model_type}' model does not generate text",
                hint=f"choose a model that {self.auto_name} knows",
                key="model.adapter",
            )
        kind = known[type(config)]
        self.check_class(kind, config)
        self._check_state(kind, config.model_type)
        return kind

    def check_class(self, kind: Any, config: Any) -> None:
        """Reject a model class that this adapter cannot run, before anything is built."""
        refuse_other_than_decoders(config)

    def _check_state(self, kind: Any, model_type: str) -> None:
        """Reject, before anything is built, models that cannot continue from a state, or not with the chosen cache."""
        refuse_batches(model_type, self.infer.batch_size)
        if self.config.cache is CacheKind.static:
            refuse_static_cache(self.text_config().model_type)
        if state_protocol(kind, model_type).made_by_model and self.config.cache is CacheKind.static:
            raise ConfigError(
                f"model.cache=static: a '{model_type}' model makes its own state, which has a fixed size anyway",
                hint="use model.cache=dynamic",
                key="model.cache",
            )

    def masks_padding(self) -> bool:
        """Whether the model takes a mask that leaves padding out."""
        kind = self._model_class(self._whole_config)
        return "attention_mask" in state_protocol(kind, self._whole_config.model_type).accepts

    def shapes(self, batch: Batch, context_tokens: int) -> PhaseShapes:
        """Describe a real batch for the static count."""
        return PhaseShapes(len(batch.sample_ids), batch.prompt_tokens, 0, context_tokens)

    def default_shapes(self) -> PhaseShapes:
        """Shapes of a typical request."""
        prompt = self._length_within_context(_DEFAULT_PROMPT_TOKENS)
        return PhaseShapes(self.infer.batch_size, prompt, 0, prompt + self.infer.max_new_tokens // 2)

    def _length_within_context(self, wanted: int) -> int:
        """Shorten a prompt of default length, so that a short context has room for the answer."""
        limit = self.context_tokens
        if limit is None:
            return wanted
        return max(1, min(wanted, max(limit - self.infer.max_new_tokens, limit // 2)))

    def static_calls(
        self, model: torch.nn.Module, shapes: PhaseShapes
    ) -> Mapping[Phase, Callable[[], object]]:
        """Return one call per phase on the meta device; with a cache and no mask, no values are read."""
        import torch

        def run(state: Any, tokens: int) -> object:
            ids = torch.zeros(shapes.batch_size, tokens, dtype=torch.long, device="meta")
            with torch.no_grad(), nothing_is_padded(model), spread_evenly(model):
                return self.forward(model, state, input_ids=ids, position_ids=ids, logits_to_keep=1)

        return self.calls_on_state(model, run, shapes)
