"""Text prompts: an inline list, a file, or synthetic ones of a given length in tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Dataset, Sample
from llm_perf_opt.workloads.datasets.filelist import printable
from llm_perf_opt.workloads.datasets.sampling import check_sampling, draw, in_epoch

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import DatasetConfig

DEFAULT_SYNTHETIC_TOKENS = 128
"""Length of made-up prompts when nothing at all is configured."""
_JSON_LINES = {".jsonl", ".ndjson"}
_SHOWN = 10


class PromptDataset(Dataset):
    """``dataset.adapter=prompts``: one of ``dataset.{prompts,prompts_file,synthetic_tokens}``.

    It never reports problems: an unusable prompt is an immediate error.
    """

    opens_quickly = True

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        check_sampling(config.sampling)
        self._samples = _samples(config)

    def __len__(self) -> int:
        """Count the prompts before sampling."""
        return len(self._samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the prompts, sampling applied."""
        for epoch, index in draw(len(self._samples), self.config.sampling):
            yield in_epoch(self._samples[index], epoch)


def _samples(config: DatasetConfig) -> list[Sample]:
    given = [
        f"dataset.{key}"
        for key in ("prompts", "prompts_file", "synthetic_tokens")
        if getattr(config, key) is not None
    ]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} are both set",
            hint=f"keep one; switch the other off with {given[-1]}=null",
            key=given[-1],
        )
    if config.prompts is not None:
        return _inline(config.prompts)
    if config.prompts_file is not None:
        return _from_file(_find(config.prompts_file, config.root))
    return _synthetic(config.synthetic_tokens, config.synthetic_count)


def _inline(prompts: Sequence[str]) -> list[Sample]:
    if not prompts:
        raise ConfigError("dataset.prompts is empty", hint="give at least one prompt", key="dataset.prompts")
    for number, prompt in enumerate(prompts):
        if not prompt.strip():
            raise ConfigError(
                f"dataset.prompts[{number}] is blank",
                hint="remove it or write a prompt",
                key=f"dataset.prompts[{number}]",
            )
    return [_sample(f"prompt_{number:03d}", prompt) for number, prompt in enumerate(prompts)]


def _synthetic(tokens: int | None, count: int) -> list[Sample]:
    chosen = {} if tokens is not None else {"default_length": True}  # a model of a short context shortens it
    tokens = DEFAULT_SYNTHETIC_TOKENS if tokens is None else tokens
    for key, value in (("synthetic_tokens", tokens), ("synthetic_count", count)):
        if value < 1:
            raise ConfigError(
                f"dataset.{key} must be at least 1, got {value}",
                hint=f"set dataset.{key}=1 or more",
                key=f"dataset.{key}",
            )
    return [
        Sample(
            id=f"synthetic_{tokens}_{number:03d}",
            synthetic_tokens=tokens,
            sha256=hashlib.sha256(f"synthetic:{tokens}:{number}".encode()).hexdigest(),
            extra={"seed": number, **chosen},
        )
        for number in range(count)
    ]


def _find(name: str, root: str | None) -> Path:
    given = Path(name).expanduser()
    candidates = [given] if given.is_absolute() or root is None else [given, Path(root).expanduser() / given]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.absolute()
    raise InputError(
        f"dataset.prompts_file not found: {printable(given)}",
        hint="give an absolute path, or one relative to the working directory or to dataset.root",
        key="dataset.prompts_file",
    )


def _from_file(path: Path) -> list[Sample]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"{printable(path)} line {line} is not UTF-8", hint="save the file as UTF-8"
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot read {printable(path)}: {error.strerror}", hint="check its permissions"
        ) from error
    numbered = [(number, line.strip("\r")) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InputError(
            f"{printable(path)} contains no prompts",
            hint="write one prompt per line",
            key="dataset.prompts_file",
        )
    if path.suffix.lower() in _JSON_LINES or all(_is_json_prompt(line) for _, line in numbered):
        return _from_json_lines(path, numbered)
    return [_sample(f"{path.stem}_{number:03d}", line) for number, line in numbered]


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_json_prompt(line: str) -> bool:
    """Whether a line of a file of unknown type is JSON: an object with a prompt."""
    value = _parse(line) if line.lstrip().startswith("{") else None
    return isinstance(value, dict) and isinstance(value.get("prompt"), str)


def _from_json_lines(path: Path, numbered: Sequence[tuple[int, str]]) -> list[Sample]:
    samples: list[Sample] = []
    wrong: list[int] = []
    ids: set[str] = set()
    for number, line in numbered:
        value = _parse(line)
        prompt = value.get("prompt") if isinstance(value, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            wrong.append(number)
            continue
        name = str(value.get("id") or f"{path.stem}_{number:03d}")
        name = name if name not in ids else f"{name}#{number}"
        ids.add(name)
        reference = value.get("reference")
        samples.append(_sample(name, prompt, reference if isinstance(reference, str) else None))
    if wrong:
        shown = ", ".join(map(str, wrong[:_SHOWN])) + (
            f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        )
        raise InputError(
            f"{printable(path)}: {len(wrong)} of {len(numbered)} lines have no 'prompt' (lines {shown})",
            hint='each line must be a JSON object such as {"prompt": "…"}',
            key="dataset.prompts_file",
            lines=wrong,
        )
    return samples


def _sample(name: str, prompt: str, reference: str | None = None) -> Sample:
    digest = hashlib.sha256(prompt.encode("utf-8", errors="surrogatepass")).hexdigest()
    return Sample(id=name, prompt=prompt, reference=reference, sha256=digest)
