"""A checkpoint's own processor: image or audio preprocessing, tokenizer and chat template in one object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import CheckpointError, ConfigError, InputError
from llm_perf_opt.process.tools import has_package
from llm_perf_opt.workloads.models.loading import read_json

if TYPE_CHECKING:
    from PIL.Image import Image
    from tokenizers import Tokenizer

    from llm_perf_opt.config.schema import ModelConfig


# Tokenizers: the checkpoint's own, or a small deterministic one for random weights.


BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE = "<image>"
_OCR_SPECIAL_TOKENS = (
    IMAGE, "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>",
    "<td>", "</td>", "<tr>", "</tr>", "<|User|>", "<|Assistant|>",
)  # fmt: skip
"""DeepSeek-OCR's own tokens, in the order of their ids (128815 to 128826 in the published vocabulary)."""
PUBLISHED_IMAGE_TOKEN_ID = 128815
_TRAINING_TEXT = (
    "Convert the document to markdown.", "Free OCR.", "OCR this image.", "Parse the figure.",
    "Describe this image in detail.", "Locate the title in the image.", "Explain how a roofline model works.",
    "What limits the speed of a large language model on this machine?", "Write a short story about a quick brown fox.",
    "Summarise the text, list the numbers and translate the headings of the table.",
)  # fmt: skip
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")
_MERGES = 600


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """Tokenizer interface of the adapters."""

    backend: Tokenizer

    def encode(self, text: str) -> list[int]:
        """Return ids of the text; special tokens in it are recognised, none are added."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """Return the id of one token."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)


def load_tokenizer(directory: Path) -> TextTokenizer:
    """Read ``tokenizer.json`` of a checkpoint, exactly as it is."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"no tokenizer.json in {directory}",
            hint="copy the tokenizer files into the checkpoint directory",
            path=str(file),
        )
    try:
        return TextTokenizer(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower for a damaged file
        raise CheckpointError(
            f"cannot read {file}: {error}", hint="download or copy it again", path=str(file)
        ) from error


def _pronounceable_word(index: int) -> str:
    """Return a pronounceable word for an unused id, so that random output reads as words."""
    word = ""
    index += 1
    while index:
        index, syllable = divmod(index, len(_ONSETS) * len(_VOWELS))
        word += _ONSETS[syllable // len(_VOWELS)] + _VOWELS[syllable % len(_VOWELS)]
    return word


@functools.lru_cache(maxsize=4)
def small_tokenizer(vocab_size: int, fixed: tuple[tuple[str, int], ...]) -> TextTokenizer:
    """Make a byte-level BPE of exactly ``vocab_size`` ids with the ``fixed`` (special token, id) pairs.

    Merges are learnt from a few sentences, so common words are one token, as with a real vocabulary; the
    remaining ids are made-up words. The same arguments always give the same tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    needed = 256 + len(fixed)
    if vocab_size < needed:
        raise ConfigError(
            f"vocab_size {vocab_size} is too small for random weights: bytes and special tokens need {needed}",
            hint=f"use at least {needed}",
            key="model.arch",
        )
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = min(vocab_size - len(fixed), 256 + _MERGES)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    trained.train_from_iterator(_TRAINING_TEXT, trainer)
    learnt = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    merges = _learnt_merges(trained)

    taken = dict(fixed)
    free = iter(sorted(set(range(vocab_size)) - set(taken.values())))
    vocab = {token: next(free) for token in learnt}
    vocab.update(taken)
    for number, index in enumerate(free):
        word = "Ġ" + _pronounceable_word(number)
        vocab[word if word not in vocab else f"{word}{number}"] = index

    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, _ in sorted(fixed, key=lambda pair: pair[1])
        ]
    )
    return TextTokenizer(made)


def _learnt_merges(trained: Tokenizer) -> list[tuple[str, str]]:
    import json

    merges = json.loads(trained.to_str())["model"]["merges"]
    return [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ", 1)) for merge in merges]


def ocr_special_ids(vocab_size: int, image_token_id: int, bos: int, eos: int) -> tuple[tuple[str, int], ...]:
    """Place DeepSeek-OCR's special tokens: consecutive from the image token, as published."""
    pad = next(
        index
        for index in range(3 + len(_OCR_SPECIAL_TOKENS))
        if index not in {bos, eos} and not image_token_id <= index < image_token_id + len(_OCR_SPECIAL_TOKENS)
    )
    placed = [(BOS, bos), (EOS, eos), (PAD, pad)]
    placed += [(token, image_token_id + number) for number, token in enumerate(_OCR_SPECIAL_TOKENS)]
    if max(index for _, index in placed) >= vocab_size:
        raise ConfigError(
            f"model.arch.image_token_id={image_token_id} leaves no room below vocab_size {vocab_size}",
            hint=f"use at most {vocab_size - len(_OCR_SPECIAL_TOKENS)}",
            key="model.arch.image_token_id",
        )
    return tuple(placed)


_VIDEO = "video_processor"
_NAME_THE_CLASS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_PADDED = {"padding": True, "padding_side": "left"}
_TRAINING_ONLY = ("labels",)
_CANNOT_BE_READ = (OSError, ValueError, LookupError, TypeError, AttributeError)


def load_processor(source: str, *, model_type: str, revision: str | None, remote_code: bool) -> Any:
    """Read a checkpoint's processor; if only its video part lacks a package, it is left out."""
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
            hint="install it in the environment of llm-perf-opt",
            key="model.path",
        ) from error
    except _CANNOT_BE_READ as error:
        raise CheckpointError(
            f"no usable processor in {source}: {_one_line(error)}",
            hint="copy processor_config.json, preprocessor_config.json and the tokenizer files into the checkpoint directory",
            path=source,
        ) from error


def load_part(kind: Any, config: ModelConfig, *, remote_code: bool, what: str, files: str) -> Any:
    """Read one part of the checkpoint ``model.path``, with the given ``Auto…`` class of transformers."""
    try:
        return kind.from_pretrained(config.path, revision=config.revision, trust_remote_code=remote_code)
    except (*_CANNOT_BE_READ, ImportError) as error:
        raise CheckpointError(
            f"no usable {what} in {config.path}: {_one_line(error)}",
            hint=f"copy {files} next to the weights",
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
    """Return a processor class that works without a video processor.

    transformers reads videos through torchvision alone; images need Pillow only, and profiling uses pages.
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
    return has_package("torchvision")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def with_chat_template(
    processor: Any, texts: Sequence[str], images: Sequence[Image], source: str
) -> dict[str, Any]:
    """Apply the processor's chat template to one image and one text per request, and make tensors of them.

    The template inserts the image placeholder itself, so the common one is removed from the text.
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
            processor_kwargs=dict(_PADDED),  # transformers modifies its arguments
        )

    return _tensors(call, source)


def processed(processor: Any, texts: Sequence[str], images: Sequence[Image], source: str) -> dict[str, Any]:
    """Make tensors of plain prompts, with the image at its placeholder, or first without one."""
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
            hint="fix its chat template, or disable it with infer.chat_template=false",
            key="infer.chat_template",
        ) from error
    return {name: value for name, value in found.items() if name not in _TRAINING_ONLY}
