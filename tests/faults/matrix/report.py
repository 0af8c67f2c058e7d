"""Run directories, summaries and manifests that cannot be believed: exit 3, named, nothing rendered from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import Case

_DOCUMENTS = {
    "empty": "",
    "half": '{"run": {"id": "x", ',
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "another document": '{"hello": "world"}',
    "a future version": '{"schema_version": "9.0", "run": {}}',
    "no version": '{"run": {"id": "x"}}',
    "a version that is none": '{"schema_version": {"a": 1}}',
    "wrong types": '{"schema_version": "1.1", "run": [], "environment": 3, "hardware": "x", "workload": null}',
    "deep nesting": "[" * 100_000,
    "not finite": '{"schema_version": "1.1", "run": {"id": "x", "status": "ok", "started": "", "seconds": NaN}}',
    "bytes": "\x00\x01\x02",
}


def _written(name: str, text: str, *verb: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        target = folder / "made"
        target.mkdir()
        (target / name).write_text(text)
        return [part.replace("{made}", str(target)) for part in verb]

    return build


def _cases() -> Iterator[Case]:
    for damage, text in _DOCUMENTS.items():
        yield Case(
            "report",
            f"summary: {damage}",
            _written("summary.json", text, "report", "{made}"),
            3,
            ("summary",),
        )
        yield Case(
            "report",
            f"compare of a summary: {damage}",
            _written("summary.json", text, "compare", "{made}", "{made}"),
            3,
            ("summary",),
        )
        if damage not in ("a future version", "no version", "a version that is none", "another document"):
            yield Case(
                "report",
                f"manifest: {damage}",
                _written("manifest.json", text, "report", "{made}"),
                3,
                ("manifest",),
            )
    yield Case(
        "report",
        "no such directory",
        lambda folder: ["report", str(folder / "gone")],
        3,
        ("not a directory",),
    )
    yield Case("report", "an empty directory", lambda folder: ["report", str(folder)], 3, ("manifest.json",))
    yield Case(
        "report",
        "compare with nothing",
        lambda folder: ["compare", str(folder / "a"), str(folder / "b")],
        3,
        ("does not exist",),
    )
    yield Case(
        "report",
        "compare of empty folders",
        lambda folder: ["compare", str(folder), str(folder)],
        3,
        ("contains no run",),
    )
    yield Case("report", "compare of one side", lambda folder: ["compare", str(folder)], 2, ())
    yield Case(
        "report",
        "a gate that is none",
        _written("summary.json", "{}", "compare", "{made}", "{made}", "--gate", "speed"),
        2,
        ("speed",),
    )


CASES = tuple(_cases())
