"""Where a text model's configuration comes from: built-in shapes, files; and a tokenizer for random weights."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

from llm_perf_opt.config.dimensions import wrong_dimensions
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.models.checkpoints import loading
from llm_perf_opt.workloads.models.checkpoints.tokenizer import (
    BOS,
    EOS,
    TextTokenizer,
    small_tokenizer,
)


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
    """Refuse dimensions no model can have; transformers takes them and ends in the middle of an operator."""
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
    """Return the end tokens a generation_config.json names; :class:`InputError` for what is none."""
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise InputError(
            f"{file}: eos_token_id must be a token id, or a list of them",
            hint="copy the checkpoint's generation_config.json again, or remove it",
            path=str(file),
        )
    return tuple(ids)


def templated_ids(tokenizer: Any, chat: list[dict[str, str]], source: str | None) -> Any:
    """Apply the checkpoint's own template, which is a program in Jinja and may be a wrong one."""
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    except (TemplateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"the chat template of {source} cannot be used: {' '.join(str(error).split())[:200]}",
            hint="mend tokenizer_config.json, or leave the template out with infer.chat_template=false",
            key="infer.chat_template",
        ) from error


def refuse_other_than_decoders(config: Any) -> None:
    """Refuse encoder-decoders, which AutoModelForCausalLM would build half of without a word."""
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"a '{config.model_type}' model is an encoder-decoder: this adapter runs decoders, and half of the model is not one",
            hint="encoder-decoders of text run with model=hf_seq2seq, of speech with model=hf_speech_seq2seq",
            key="model.arch.model_type",
        )
