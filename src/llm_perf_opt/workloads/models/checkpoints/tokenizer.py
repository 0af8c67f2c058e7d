"""Tokenizers: the checkpoint's own, or a small deterministic one for random weights."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE = "<image>"
OCR_SPECIAL_TOKENS = (
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
    """What the adapters need of a tokenizer."""

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
            hint="copy the checkpoint's tokenizer files beside its weights",
            path=str(file),
        )
    try:
        return TextTokenizer(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower for a damaged file
        raise CheckpointError(
            f"cannot read {file}: {error}", hint="download or copy it again", path=str(file)
        ) from error


def _pronounceable_word(index: int) -> str:
    """Return a pronounceable word for an id no text maps to, so that random output reads as words."""
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
        for index in range(3 + len(OCR_SPECIAL_TOKENS))
        if index not in {bos, eos} and not image_token_id <= index < image_token_id + len(OCR_SPECIAL_TOKENS)
    )
    placed = [(BOS, bos), (EOS, eos), (PAD, pad)]
    placed += [(token, image_token_id + number) for number, token in enumerate(OCR_SPECIAL_TOKENS)]
    if max(index for _, index in placed) >= vocab_size:
        raise ConfigError(
            f"model.arch.image_token_id={image_token_id} leaves no room below vocab_size {vocab_size}",
            hint=f"use at most {vocab_size - len(OCR_SPECIAL_TOKENS)}",
            key="model.arch.image_token_id",
        )
    return tuple(placed)
