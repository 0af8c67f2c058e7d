"""A checkpoint's own processor: image or audio preprocessing, tokenizer and chat template in one object."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import CheckpointError, ConfigError, InputError
from llm_perf_opt.workloads.models.checkpoints.loading import read_json
from llm_perf_opt.workloads.models.checkpoints.tokenizer import IMAGE

if TYPE_CHECKING:
    from PIL.Image import Image

    from llm_perf_opt.config.schema import ModelConfig

_VIDEO = "video_processor"
_NAME_THE_CLASS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_PADDED = {"padding": True, "padding_side": "left"}
_TRAINING_ONLY = ("labels",)
_CANNOT_BE_READ = (OSError, ValueError, LookupError, TypeError, AttributeError)


def load_processor(source: str, *, model_type: str, revision: str | None, remote_code: bool) -> Any:
    """Read a checkpoint's processor; where only its video half lacks a package, do without that half."""
    from transformers import AutoProcessor

    options = {"revision": revision, "trust_remote_code": remote_code}
    try:
        kind = processor_class(source, model_type)
        if kind is not None and _VIDEO in kind.get_attributes() and not _reads_videos():
            return _without_videos(kind, source, options)
        return AutoProcessor.from_pretrained(source, **options)
    except ImportError as error:
        raise ConfigError(
            f"the processor of {source} needs a package that is not installed: {_one_line(error)}",
            hint="install it beside llm-perf-opt",
            key="model.path",
        ) from error
    except _CANNOT_BE_READ as error:
        raise CheckpointError(
            f"no usable processor in {source}: {_one_line(error)}",
            hint="copy processor_config.json, preprocessor_config.json and the tokenizer files beside the weights",
            path=source,
        ) from error


def load_part(kind: Any, config: ModelConfig, *, remote_code: bool, what: str, files: str) -> Any:
    """Read one part of the checkpoint ``model.path``, by the ``Auto…`` class of transformers that finds it."""
    try:
        return kind.from_pretrained(config.path, revision=config.revision, trust_remote_code=remote_code)
    except (*_CANNOT_BE_READ, ImportError) as error:
        raise CheckpointError(
            f"no usable {what} in {config.path}: {_one_line(error)}",
            hint=f"copy {files} beside the weights",
            path=config.path,
        ) from error


def processor_class(source: str, model_type: str) -> Any:
    """Return the processor class that a checkpoint's files name, or that of its model type; ``None``: not one of transformers."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    for file in (Path(source).expanduser() / name for name in _NAME_THE_CLASS):
        name = read_json(file).get("processor_class") if file.is_file() else None
        if isinstance(name, str) and hasattr(transformers, name):
            return getattr(transformers, name)
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    return getattr(transformers, name) if name is not None else None


def images_only(kind: Any) -> Any:
    """Return a processor class that is content without a video processor.

    transformers reads videos through torchvision alone; images need Pillow only, and a profiler shows pages.
    """

    def check(self: Any, name: str, value: Any) -> Any:
        if name == _VIDEO and value is None:
            return None
        return super(made, self).check_argument_for_proper_class(name, value)

    made: Any = type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})
    return made


def _without_videos(kind: Any, source: str, options: Mapping[str, Any]) -> Any:
    from transformers import AutoImageProcessor, AutoTokenizer

    makers: dict[str, Callable[[], Any]] = {
        "image_processor": lambda: AutoImageProcessor.from_pretrained(source, **options),
        "tokenizer": lambda: AutoTokenizer.from_pretrained(source, **options),
        _VIDEO: lambda: None,
    }
    document, _ = kind.get_processor_dict(source)
    return images_only(kind).from_args_and_dict([makers[name]() for name in kind.get_attributes()], document)


def _reads_videos() -> bool:
    return importlib.util.find_spec("torchvision") is not None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def with_chat_template(
    processor: Any, texts: Sequence[str], images: Sequence[Image], source: str
) -> dict[str, Any]:
    """Apply the processor's chat template to one image and one text per request, and make tensors of them.

    The template writes the image's place itself, so the common mark of it is left out of the text.
    """
    chats = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "image": image}, {"type": "text", "text": _without_mark(text)}],
            }
        ]
        for text, image in zip(texts, images, strict=True)
    ]

    def call() -> Any:
        return processor.apply_chat_template(
            chats,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs=dict(_PADDED),  # transformers writes into what it is given
        )

    return _tensors(call, source)


def processed(processor: Any, texts: Sequence[str], images: Sequence[Image], source: str) -> dict[str, Any]:
    """Make tensors of prompts as they are, the image where it is marked, or first where a prompt has no mark."""
    token = str(getattr(processor, "image_token", IMAGE))
    whole = [text.replace(IMAGE, token) for text in texts]
    whole = [text if token in text else f"{token}{text}" for text in whole]
    nested = [[image] for image in images]
    return _tensors(lambda: processor(text=whole, images=nested, return_tensors="pt", **_PADDED), source)


def _without_mark(text: str) -> str:
    return text.replace(f"{IMAGE}\n", "").replace(IMAGE, "").strip()


def _tensors(call: Callable[[], Any], source: str) -> dict[str, Any]:
    from jinja2 import TemplateError

    try:
        found = call()
    except (TemplateError, ArithmeticError, *_CANNOT_BE_READ) as error:
        raise InputError(
            f"the processor of {source} cannot be used: {_one_line(error)}",
            hint="mend its chat template, or leave it out with infer.chat_template=false",
            key="infer.chat_template",
        ) from error
    return {name: value for name, value in found.items() if name not in _TRAINING_ONLY}
