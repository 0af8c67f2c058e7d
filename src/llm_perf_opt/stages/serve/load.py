"""The load: load points, arrival times, prompts of a given length, shared prefixes, conversations and traces."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import read_document
from llm_perf_opt.stages.serve.config import MOST_REQUESTS, Arrival, Endpoint, ServeConfig

_DEFAULT_CONCURRENCY = (1, 4)
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face others "
    "level office door health person art war history party result change morning reason research girl guy moment air teacher"
)
WORDS = _TEXT.split()
"""Common words: one token each with most tokenizers."""


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One requested load point."""

    kind: Literal["open", "closed"]
    rate_per_s: float | None = None
    concurrency: int | None = None
    label: str = ""


@dataclass(slots=True)
class PlannedRequest:
    """One request before it is sent."""

    id: str
    prompt: str
    new_tokens: int
    offset_s: float | None = None
    """Time of sending since the begin of the load point; ``None`` in a closed loop: as soon as a slot is free."""
    cancel_after: int | None = None
    """Chunks after which the client cancels it."""
    conversation: int | None = None
    """Requests of one conversation are sent one after the other, each with the history before it."""


@dataclass(slots=True)
class PlannedLoad:
    """A load point and its requests, in the order of sending."""

    level: LoadLevel
    requests: Iterator[PlannedRequest]
    count: int | None
    """``None``: as many as the duration allows."""


_MOST_AHEAD = 20_000_000
"""Words that are made before a load point begins; longer loads are made while they are sent."""


def made_ahead(load: PlannedLoad, config: ServeConfig) -> Iterator[PlannedRequest]:
    """Return the requests, made before the load begins where they fit into memory: creating one late would delay it."""
    longest = config.prompt_tokens_max or (config.prompt_tokens if config.trace is None else 8192)
    if load.count is None or load.count * longest > _MOST_AHEAD:
        return load.requests
    return iter(list(load.requests))


@dataclass(slots=True)
class Vocabulary:
    """Words that are one token each after a space; without a tokenizer common words, most of which are."""

    words: Sequence[str] = field(default_factory=lambda: WORDS)
    is_exact: bool = False
    extra_tokens: int = 0
    """Tokens that the tokenizer puts before every prompt."""

    def text(self, draw: random.Random, tokens: int) -> str:
        """Return words of about so many tokens."""
        return " ".join(draw.choices(self.words, k=max(tokens, 1)))


def read_vocabulary(checkpoint: Path | None) -> Vocabulary:
    """Return words that are one token each with the tokenizer of a local checkpoint, else common words."""
    file = checkpoint / "tokenizer.json" if checkpoint is not None else None
    if file is None or not file.is_file():
        return Vocabulary()
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises no specific exception for a damaged file
        raise InputError(
            f"{file} is not a tokenizer: {error}", hint="copy the checkpoint again", path=str(file)
        ) from error
    extra = len(tokenizer.encode("").ids)
    candidates = list(WORDS)
    for token in sorted(tokenizer.get_vocab())[:20_000]:
        word = token.lstrip("Ġ▁")
        if 2 <= len(word) <= 12 and word.isascii() and word.isalpha():
            candidates.append(word)
    unknown = tokenizer.token_to_id("<unk>")
    chosen = []
    for word in dict.fromkeys(candidates):
        # Twice in a row: the first word of a text has no space before it.
        ids = tokenizer.encode(f"{word} {word}").ids
        if len(ids) - extra == 2 and unknown not in ids:
            chosen.append(word)
        if len(chosen) >= 512:
            break
    if len(chosen) < 16:
        return Vocabulary()
    return Vocabulary(chosen, is_exact=True, extra_tokens=extra)


def load_levels(config: ServeConfig) -> list[LoadLevel]:
    """Return the load points in the order in which they are measured."""
    if config.trace is not None:
        speed = f" at {config.trace_speed:g} times its speed" if config.trace_speed != 1 else ""
        return [LoadLevel("open", label=f"trace {Path(config.trace).name}{speed}")]
    levels = [LoadLevel("open", rate_per_s=rate, label=f"{rate:g} requests/s") for rate in config.rate]
    closed = config.concurrency or ([] if config.rate else list(_DEFAULT_CONCURRENCY))
    return levels + [LoadLevel("closed", concurrency=n, label=f"{n} in flight") for n in closed]


def plan_loads(config: ServeConfig, vocabulary: Vocabulary) -> list[PlannedLoad]:
    """Return every load point with its requests; the same configuration gives the same requests."""
    if config.trace is not None:
        return [_plan_trace(config, vocabulary)]
    prompts = _file_prompts(config)
    return [
        _plan_level(config, vocabulary, level, number, prompts)
        for number, level in enumerate(load_levels(config))
    ]


def warm_up(config: ServeConfig, vocabulary: Vocabulary) -> list[PlannedRequest]:
    """Return requests of the same lengths with other words, so that they do not fill the prefix cache."""
    draw = random.Random(f"{config.seed} warm-up")
    return [
        PlannedRequest(
            f"warmup-{number}",
            vocabulary.text(draw, config.prompt_tokens - vocabulary.extra_tokens),
            config.new_tokens,
        )
        for number in range(config.warmup_requests)
    ]


def _plan_level(
    config: ServeConfig, vocabulary: Vocabulary, level: LoadLevel, number: int, prompts: Sequence[str]
) -> PlannedLoad:
    count = config.requests
    conversations = config.turns if config.endpoint is Endpoint.chat and config.turns > 1 else None

    def requests() -> Iterator[PlannedRequest]:
        draw = random.Random(f"{config.seed} {number}")
        arrivals = _arrivals(config, level, number)
        for index in range(count if count is not None else MOST_REQUESTS):
            if prompts:
                prompt = prompts[index % len(prompts)]
            else:
                prompt = _prompt(
                    config, vocabulary, draw, _drawn(draw, config.prompt_tokens, config.prompt_tokens_max)
                )
            new_tokens = _drawn(draw, config.new_tokens, config.new_tokens_max)
            one = PlannedRequest(f"load{number}-{index}", prompt, new_tokens)
            if config.cancel_ratio and draw.random() < config.cancel_ratio:
                one.cancel_after = max(1, new_tokens // 2)
            if level.rate_per_s is not None:
                one.offset_s = next(arrivals)
                if config.duration_s is not None and one.offset_s > config.duration_s:
                    return
            if conversations is not None:
                one.conversation = index // conversations
            yield one

    return PlannedLoad(level, requests(), count)


def _arrivals(config: ServeConfig, level: LoadLevel, number: int) -> Iterator[float]:
    """Yield the send times of an open loop.

    Random distances of a known number of requests are scaled to the requested rate: a few dozen drawn ones would miss
    it by a third.
    """
    rate, draw = level.rate_per_s or 1.0, random.Random(f"{config.seed} {number} arrivals")
    if config.arrival is Arrival.constant:
        yield from (index / rate for index in itertools.count())
    gaps: Iterable[float] = (draw.expovariate(rate) for _ in itertools.count())
    if config.requests is not None and config.requests > 1 and config.duration_s is None:
        held = list(itertools.islice(gaps, config.requests - 1))
        scale = len(held) / rate / sum(held)
        gaps = [gap * scale for gap in held]
    yield from itertools.accumulate(gaps, initial=0.0)


def _drawn(draw: random.Random, least: int, most: int | None) -> int:
    return draw.randint(least, most) if most is not None else least


def _prompt(config: ServeConfig, vocabulary: Vocabulary, draw: random.Random, tokens: int) -> str:
    tokens = max(tokens - vocabulary.extra_tokens, 1)
    if not config.prefix_tokens:
        return vocabulary.text(draw, tokens)
    shared = random.Random(f"{config.seed} prefix {draw.randrange(config.prefixes)}")
    own = max(tokens - config.prefix_tokens, 1)
    return f"{vocabulary.text(shared, config.prefix_tokens)} {vocabulary.text(draw, own)}"


def _file_prompts(config: ServeConfig) -> list[str]:
    if config.prompts_file is None:
        return []
    path = Path(config.prompts_file).expanduser()
    found = []
    for line in read_document(path).decode("utf-8", errors="replace").splitlines():
        if not line.strip():
            continue
        text: Any = line
        if line.lstrip().startswith("{"):
            try:
                text = json.loads(line).get("prompt")
            except ValueError as error:
                raise InputError(
                    f"{path}: a line is not JSON: {error}", hint="write one object per line", path=str(path)
                ) from error
        if isinstance(text, str) and text:
            found.append(text)
    if not found:
        raise InputError(
            f"{path} has no prompt",
            hint="one prompt per line, or JSON lines with a prompt key",
            path=str(path),
        )
    return found


def _plan_trace(config: ServeConfig, vocabulary: Vocabulary) -> PlannedLoad:
    """Replay a Mooncake trace: requests that share block hashes share their words, block by block."""
    from llm_perf_opt.captures.serving.reader import read_serving

    path = Path(config.trace or "").expanduser()
    trace = read_serving([path]).trace
    if trace is None or not len(trace.time_s):
        raise InputError(
            f"{path} is not a Mooncake trace",
            hint="JSON lines with timestamp, input_length, output_length",
            path=str(path),
        )
    block = functools.lru_cache(maxsize=4096)(_block_text(vocabulary, trace.block_tokens))
    times = ((trace.time_s - trace.time_s[0]) / config.trace_speed).tolist()
    lengths = list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    count = min(len(times), config.requests if config.requests is not None else len(times))

    def requests() -> Iterator[PlannedRequest]:
        for index in range(count):
            if config.duration_s is not None and times[index] > config.duration_s:
                return
            prompt_tokens, new_tokens = lengths[index]
            prompt_tokens = min(prompt_tokens, config.prompt_tokens_max or prompt_tokens)
            new_tokens = max(1, min(new_tokens, config.new_tokens_max or new_tokens))
            yield PlannedRequest(
                f"load0-{index}",
                _trace_prompt(trace.blocks[index], prompt_tokens, trace.block_tokens, block),
                new_tokens,
                times[index],
            )

    level = load_levels(config)[0]
    return PlannedLoad(level, requests(), count)


def _block_text(vocabulary: Vocabulary, tokens: int) -> Callable[[int], str]:
    return lambda number: vocabulary.text(random.Random(f"block {number}"), tokens)


def _trace_prompt(blocks: Sequence[int], tokens: int, block_tokens: int, text: Callable[[int], str]) -> str:
    """Words of the blocks, cut to the length of the prompt; a prompt without hashes shares nothing."""
    words: list[str] = []
    for number in blocks:
        words += text(number).split(" ")
        if len(words) >= tokens:
            break
    rest = max(tokens, 1) - len(words)
    if rest > 0:
        words += random.Random(f"own {blocks} {tokens}").choices(WORDS, k=rest)
    return " ".join(words[: max(tokens, 1)])


def image_url(side: int, seed: int) -> str:
    """Return a made-up image as a data URL: noise, which does not compress well."""
    import base64
    import io

    from PIL import Image

    small = random.Random(f"{seed} image").randbytes(3 * 64 * 64)
    image = Image.frombytes("RGB", (64, 64), small).resize((side, side))
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
