"""Adapter for a model type, or the reason why there is none: determined from ``config.json`` alone, before anything is imported or built.

transformers keeps one table per use (causal language models, image-text-to-text, speech, …). They are read from its
source: importing it would import torch, which a check before any work must not.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.static.quantised import PACKAGES, method_of
from llm_perf_opt.config.checks import wrong_dimensions
from llm_perf_opt.config.schema import Weights
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.process.tools import has_package
from llm_perf_opt.workloads.models import loading
from llm_perf_opt.workloads.models.processors import BOS, EOS, TextTokenizer, small_tokenizer

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import ModelConfig

CAUSAL, VISION_LANGUAGE, SEQ2SEQ, SPEECH = (
    "hf_causal_lm",
    "hf_image_text_to_text",
    "hf_seq2seq",
    "hf_speech_seq2seq",
)
AUTO = "auto"
"""``model.adapter=auto``: the adapter that fits ``config.json``."""
HF_ADAPTERS = (CAUSAL, VISION_LANGUAGE, SEQ2SEQ, SPEECH)
DATASETS = {VISION_LANGUAGE: "omnidocbench", SPEECH: "audio"}
"""Adapter → data set that suits it; the others read prompts."""
_OWN_ADAPTERS = {
    "DeepseekOCRForCausalLM": "deepseek_ocr",
    "UnlimitedOcrForConditionalGeneration": "deepseek_ocr",
    "DeepseekOcr2ForConditionalGeneration": "deepseek_ocr2",
}
"""Architecture → adapter written for it."""
_TABLES = {
    CAUSAL: "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    VISION_LANGUAGE: "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    SEQ2SEQ: "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    SPEECH: "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
_MASKED, _ANY = "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"
_MULTIMODAL = "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"
"""Holds the vision-language models by reference to their own table, and next to them those that hear."""
_OTHER_USES = {
    "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES": "an encoder of text",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES": "a pair of encoders, of images and of text",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "an encoder of images",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES": "a detector of objects",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "an encoder of sound",
    "MODEL_FOR_CTC_MAPPING_NAMES": "an encoder of sound",
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES": "a model that draws masks",
}
"""Table of another use → what its models are; looked through in this order."""
_ENCODERS_BESIDE = frozenset({"bert-generation"})
"""Encoders that transformers does not list as masked language models."""
_RUNS = {
    CAUSAL: "decoders",
    VISION_LANGUAGE: "decoders that see images",
    SEQ2SEQ: "encoder-decoders of text",
    SPEECH: "encoder-decoders of speech",
}
_IS = {
    CAUSAL: "a decoder of text",
    VISION_LANGUAGE: "a vision-language model",
    SEQ2SEQ: "an encoder-decoder of text",
    SPEECH: "an encoder-decoder of speech",
}


def adapter_for(document: Mapping[str, Any]) -> str:
    """Return the adapter that runs what a ``config.json`` describes; :class:`ConfigError` has the reason if there is none."""
    for architecture in document.get("architectures") or ():
        if architecture in _OWN_ADAPTERS:
            return _OWN_ADAPTERS[architecture]
    kind = str(document.get("model_type"))
    fitting = [
        adapter for adapter in (SPEECH, SEQ2SEQ, VISION_LANGUAGE, CAUSAL) if kind in _types_of(adapter)
    ]
    if not fitting and kind not in _known_types():
        return CAUSAL  # the checkpoint's own code, or a mistake that the adapter reports
    if not fitting or (fitting == [CAUSAL] and _is_encoder(kind, document.get("is_decoder"))):
        _refuse_what_does_not_generate(kind)
    return fitting[0]


def refuse_model_type(kind: str, adapter: str, *, is_decoder: bool | None = None) -> None:
    """Raise :class:`ConfigError` unless ``adapter`` runs this model type; the error names the model type and the right adapter."""
    if adapter not in HF_ADAPTERS or kind not in _known_types():
        return
    if adapter == CAUSAL and _is_encoder(kind, is_decoder):
        _refuse_what_does_not_generate(kind)
    fitting = adapter_for({"model_type": kind, "is_decoder": is_decoder})
    # A vision-language model may also be run as the text model inside it, where transformers offers that.
    if fitting == adapter or (adapter == CAUSAL and fitting == VISION_LANGUAGE and kind in _types_of(CAUSAL)):
        return
    half = ", and half of the model is not one" if fitting in (SEQ2SEQ, SPEECH) else ""
    raise ConfigError(
        f"a '{kind}' model is {_IS[fitting]}: adapter {adapter} runs {_RUNS[adapter]}{half}",
        hint=f"use model={fitting}",
        key="model.adapter",
    )


def _refuse_what_does_not_generate(kind: str) -> None:
    if _is_encoder(kind, False):
        raise ConfigError(
            f"a '{kind}' model is an encoder: every position sees the whole text, so it does not generate",
            hint="choose a decoder, or a checkpoint with is_decoder=true",
            key="model.arch.model_type",
        )
    tables = auto_tables()
    if kind in tables.get(_MULTIMODAL, ()):
        raise ConfigError(
            f"a '{kind}' model is a decoder that hears: no adapter runs those",
            hint="speech is read by encoder-decoders such as whisper (model=hf_speech_seq2seq)",
            key="model.arch.model_type",
        )
    use = next((use for table, use in _OTHER_USES.items() if kind in tables.get(table, ())), None)
    what = f"is {use}: it" if use is not None else "is for another use in transformers: it"
    raise ConfigError(
        f"a '{kind}' model {what} does not generate text",
        hint="choose a decoder, a vision-language model or an encoder-decoder",
        key="model.arch.model_type",
    )


def _is_encoder(kind: str, is_decoder: bool | None) -> bool:
    """Whether a model type is an encoder here: configurations of decoders have an unused is_decoder."""
    listed = kind in auto_tables().get(_MASKED, ()) or kind in _ENCODERS_BESIDE
    return listed and not is_decoder and not any(kind in _types_of(other) for other in (SEQ2SEQ, SPEECH))


def _types_of(adapter: str) -> frozenset[str]:
    tables = auto_tables()
    found = tables.get(_TABLES[adapter], frozenset())
    # Audio language models are in the tables of encoder-decoders, but are decoders with an audio tower.
    decoders = tables.get(_MULTIMODAL, frozenset())
    return found - decoders if adapter in (SEQ2SEQ, SPEECH) else found


def _known_types() -> frozenset[str]:
    return auto_tables().get(_ANY, frozenset()) | _types_of(CAUSAL)


@functools.cache
def auto_tables() -> Mapping[str, frozenset[str]]:
    """Return transformers' tables of model types by name; empty if its source has another layout."""
    spec = importlib.util.find_spec("transformers")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return {}
    try:
        source = (Path(folders[0]) / "models" / "auto" / "modeling_auto.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}
    return {
        name: types for node in tree.body if (found := _table(node)) is not None for name, types in [found]
    }


def _table(node: ast.stmt) -> tuple[str, frozenset[str]] | None:
    """Read ``NAME = OrderedDict([("type", "Class"), …])``; entries that are not plain pairs are left out."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=entries)])):
            keys = [
                key
                for entry in entries
                if isinstance(entry, ast.Tuple)
                and isinstance(entry.elts[0], ast.Constant)
                and isinstance(key := entry.elts[0].value, str)
            ]
            return name, frozenset(keys)
    return None


# Sources of a text model's configuration: built-in shapes and files; and a tokenizer for random weights.


def known_type(kind: Any) -> bool:
    """Whether transformers has this model type itself."""
    from transformers import CONFIG_MAPPING

    return kind in CONFIG_MAPPING


def preset_names() -> list[str]:
    """Return the names of the built-in shapes."""
    folder = resources.files("llm_perf_opt.workloads.models").joinpath("presets")
    return sorted(
        entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")
    )


def named_config(name: str) -> dict[str, Any]:
    """Read ``model.config_name``: a built-in preset, a ``config.json``, or a directory that holds one."""
    if name in preset_names():
        with resources.as_file(
            resources.files("llm_perf_opt.workloads.models").joinpath("presets", f"{name}.json")
        ) as file:
            return loading.read_json(file)
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"model.config_name={name} is neither a preset nor a file",
            hint=f"{hint}presets: {', '.join(preset_names())}",
            key="model.config_name",
        )
    return loading.read_json(path)


def check_dimensions(document: dict[str, Any], file: Path) -> None:
    """Reject impossible dimensions; transformers accepts them and fails inside an operator."""
    for wrong in wrong_dimensions(document):
        raise InputError(
            f"{file}: {wrong.key} must be {wrong.meaning}, not {wrong.value!r}",
            hint="get the config.json of the checkpoint again",
            path=str(file),
        )


def random_tokenizer(config: Any) -> TextTokenizer:
    """Make a small tokenizer at the model's vocabulary size, with its begin and end ids."""
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    placed = {EOS: end, BOS: getattr(config, "bos_token_id", None)}
    used: dict[int, str] = {}
    for token, index in placed.items():
        if index is not None and 0 <= index < config.vocab_size:
            used.setdefault(int(index), token)
    return small_tokenizer(config.vocab_size, tuple((token, index) for index, token in sorted(used.items())))


def end_token_ids(found: Any, file: Path) -> tuple[int, ...]:
    """Return the end tokens a generation_config.json names; :class:`InputError` for an invalid value."""
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise InputError(
            f"{file}: eos_token_id must be a token id, or a list of them",
            hint="copy the checkpoint's generation_config.json again, or remove it",
            path=str(file),
        )
    return tuple(ids)


def templated_ids(tokenizer: Any, chat: list[dict[str, str]], source: str | None) -> Any:
    """Apply the checkpoint's own template, a Jinja program that may be invalid."""
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    except (TemplateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"the chat template of {source} cannot be used: {' '.join(str(error).split())[:200]}",
            hint="fix tokenizer_config.json, or disable the template with infer.chat_template=false",
            key="infer.chat_template",
        ) from error


def refuse_other_than_decoders(config: Any) -> None:
    """Reject encoder-decoders, of which AutoModelForCausalLM would silently build only the decoder."""
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"a '{config.model_type}' model is an encoder-decoder: this adapter runs decoders, and half of the model is not one",
            hint="encoder-decoders of text run with model=hf_seq2seq, of speech with model=hf_speech_seq2seq",
            key="model.arch.model_type",
        )


# Whether a quantised checkpoint can be loaded here, and whether it runs in its stored format; without torch.


_WIDENED_ON_CPU = ("fp8", "mxfp4")
"""Methods that transformers turns into 16 bits where there is no accelerator."""


def checkpoint_quantisation(model: ModelConfig) -> Mapping[str, Any] | None:
    """Return the ``quantization_config`` of the local checkpoint whose weights are loaded; ``None``: there is none."""
    if model.path is None or model.weights is Weights.random:
        return None
    file = Path(model.path).expanduser() / "config.json"
    if not file.is_file():
        return None
    document = loading.read_json(file)
    text = document.get("text_config")
    found = document.get("quantization_config")
    if found is None and isinstance(text, Mapping):
        found = text.get("quantization_config")
    return found if isinstance(found, Mapping) else modelopt_quantisation(file.parent)


def modelopt_quantisation(folder: Path) -> Mapping[str, Any] | None:
    """Return ``hf_quant_config.json``, written by older ModelOpt releases, as a ``quantization_config``."""
    file = folder / "hf_quant_config.json"
    found = loading.read_json(file).get("quantization") if file.is_file() else None
    return {"quant_method": "modelopt", **found} if isinstance(found, Mapping) else None


def loading_problem(model: ModelConfig) -> Problem | None:
    """Return which packages for a quantised checkpoint are not installed."""
    config = checkpoint_quantisation(model)
    if config is None:
        return None
    method = method_of(config)
    missing = [name for name in PACKAGES.get(method, ()) if not has_package(name)]
    if not missing:
        return None
    packages = " ".join(name.replace("_", "-").replace(".", "-") for name in missing)
    return Problem(
        "skip",
        f"{model.path} is quantised ({method}); loading it needs {' and '.join(missing)}, not installed here",
        f"pip install {packages}; or model.weights=random for the same shapes in 16 bits",
        "model.path",
    )


def reason_not_quantised(model: ModelConfig, device: str, *, measured: bool) -> str | None:
    """Return why a run does not use the checkpoint's format; ``None`` if it does, or if nothing runs."""
    if not measured:
        return None
    config = checkpoint_quantisation(model)
    if config is None:
        return "random weights are made in the run's own type"
    method = method_of(config)
    if device == "cpu" and method in _WIDENED_ON_CPU:
        return f"transformers widens {method} weights where there is no accelerator"
    return None
