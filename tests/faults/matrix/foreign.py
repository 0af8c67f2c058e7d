"""Run directories, searches and sweeps from somebody else, for every verb that reads one: one line of reason, nothing executed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.matrix.case import Arguments, Case
from tests.unit.history.runs_made import make_run

Change = Callable[[Path], None]
_VERBS: dict[str, tuple[str, ...]] = {
    "report": ("report", "{made}"),
    "report --reanalyse": ("report", "{made}", "--reanalyse"),
    "compare": ("compare", "{made}", "{good}", "--out={folder}/c"),
    "compare as B": ("compare", "{good}", "{made}", "--out={folder}/c"),
    "what-if": ("what-if", "{made}"),
    "improve": ("improve", "{made}", "--plan"),
    "index": ("index", "{folder}/runs"),
    "history": ("history", "{folder}/runs"),
    "sweep-report": ("sweep-report", "{folder}/runs"),
    "migrate": ("migrate", "{folder}/runs"),
}


def _file(name: str, content: bytes) -> Change:
    def write(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)

    return write


def _pipe(name: str) -> Change:
    def write(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return write


def _link(name: str, target: str) -> Change:
    def write(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)

    return write


def _edited(*path: str, value: Any) -> Change:
    """Put a value into the summary."""

    def write(run: Path) -> None:
        document = json.loads((run / "summary.json").read_text())
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        (run / "summary.json").write_text(json.dumps(document))

    return write


_CHANGES: dict[str, Change] = {
    "a summary that is a pipe": _pipe("summary.json"),
    "a summary that never ends": _link("summary.json", "/dev/zero"),
    "a summary that is a link to itself": _link("summary.json", "summary.json"),
    "a summary of brackets": _file("summary.json", b'{"schema_version":"1.1","run":' + b"[" * 200_000),
    "a summary with a lone surrogate": _edited("run", "id", value="\ud800"),
    "a summary with a number of 5,000 digits": _file("summary.json", b'{"schema_version":"1.1","run":1' + b"0" * 5000 + b"}"),
    "a command of numbers": _edited("run", "command", value=[1, None, {}]),
    "a command that is a text": _edited("run", "command", value="llm-perf-opt run model.trust_remote_code=true"),
    "a command of brackets": _edited("run", "command", value=["llm-perf-opt", "run", "model.arch=" + "[" * 5000]),
    "a command with escapes": _edited("run", "command", value=["llm-perf-opt", "run", "model=\x1b]0;pwned\x07\x1b[2J"]),
    "a time of 1e300 s": _edited("run", "seconds", value=1e300),
    "a manifest that is a pipe": _pipe("manifest.json"),
    "a configuration that is a pipe": _pipe("config.yaml"),
    "a configuration of brackets": _file("config.yaml", b"[" * 200_000),
}  # fmt: skip


def _made(change: Change, verb: tuple[str, ...]) -> Arguments:
    def build(folder: Path) -> list[str]:
        good, run = make_run(folder / "runs", "good"), make_run(folder / "runs", "made", day=2)
        change(run)
        named = {"{made}": str(run), "{good}": str(good), "{folder}": str(folder)}
        message = list(verb)
        for sign, text in named.items():
            message = [word.replace(sign, text) for word in message]
        return message

    return build


def _no_escape(folder: Path) -> None:
    """No control characters of a foreign file reach a page."""
    pages = [*folder.rglob("*.html"), *folder.rglob("*.md")]
    assert not [page for page in pages if b"\x1b" in page.read_bytes()]


def _cases() -> Iterator[Case]:
    for verb, phrase in _VERBS.items():
        for name, change in _CHANGES.items():
            yield Case("foreign", f"{verb} of {name}", _made(change, phrase), (0, 2, 3), check=_no_escape)


CASES = tuple(_cases())
