"""Sides of a comparison whose files have values of any type: compared, or refused with the file's name."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from tests.faults.fuzz import seeds
from tests.unit.history.runs_made import make_run

VALUES: tuple[Any, ...] = (
    None, True, "x", "1e5", "", -1, 0, 10**30, 1e300, -0.5, [], [None], [[]], {}, {"a": []}, "\ud800", [1e308, 1e308],
)  # fmt: skip
_EACH = 60


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a document."""
    if at:
        yield at
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def changed(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a place."""
    made = copy.deepcopy(tree)
    node = made
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return made


def mutations(tree: Any, seed: int, count: int = _EACH) -> list[tuple[str, Any]]:
    """Return documents that differ from a sound one in one value."""
    choose = random.Random(seed)
    all_places = list(places(tree))
    found = []
    for _ in range(count):
        place, value = choose.choice(all_places), choose.choice(VALUES)
        found.append((f"{'.'.join(map(str, place))}={value!r:.20}", changed(tree, place, value)))
    return found


def document() -> dict[str, Any]:
    engine: dict[str, Any] = seeds.timings()[1]
    return {
        **engine,
        "interleaved": "abc",
        "measuring": {"repeats": 3, "interval_ratio": 0.02},
        "samples": [
            {**engine["samples"][0], "id": name, "facts": {"prompt_tokens": [7, 5], "padding_ratio": 0.1}}
            for name in "abc"
        ],
    }


def sides(folder: Path) -> tuple[Path, Path]:
    """Two runs with sound files."""
    found = []
    for name in "ab":
        run = make_run(folder, name)
        (run / "direct_inference").mkdir()
        (run / "direct_inference" / "timings.json").write_text(json.dumps(document()))
        (run / "manifest.json").unlink(missing_ok=True)
        found.append(run)
    return found[0], found[1]


def _compare(a: Path, b: Path, capsys: pytest.CaptureFixture[str], what: str) -> int:
    code = main(["compare", str(a), str(b), "--resamples", "200", "--gate", "tpot:+3%"])
    output = capsys.readouterr().err
    assert code in (0, 1, 2, 3), f"{what}: {code}: {output}"
    return code


def test_sound_sides_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = sides(tmp_path)
    assert _compare(a, b, capsys, "sound") == 0


@pytest.mark.parametrize("seed", range(4))
def test_timings_of_any_type(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = sides(tmp_path)
    refused = 0
    for what, made in mutations(document(), seed):
        (b / "direct_inference" / "timings.json").write_text(json.dumps(made))
        refused += _compare(a, b, capsys, what) == 3
    assert refused


@pytest.mark.parametrize("seed", range(4))
def test_summaries_of_any_type(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = sides(tmp_path)
    sound = seeds.summaries()[0]
    (a / "summary.json").write_text(json.dumps(sound))
    for what, made in mutations(sound, seed, 25):
        (b / "summary.json").write_text(json.dumps(made))
        _compare(a, b, capsys, what)


@pytest.mark.parametrize("other", ["/dev/null", "/dev/zero", "/dev/stdin"])
def test_a_device_is_no_side(other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, _ = sides(tmp_path)
    assert main(["compare", str(a), other]) == 3
    assert other in capsys.readouterr().err


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("gate", [[], ["--gate", "tpot:+3%"]])
def test_a_side_that_failed_is_the_exit_code(
    gate: list[str], which: int, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the help says, with and without a gate."""
    pair = sides(tmp_path)
    summary = json.loads((pair[which] / "summary.json").read_text())
    summary["run"]["status"] = status
    (pair[which] / "summary.json").write_text(json.dumps(summary))
    assert main(["compare", *map(str, pair), *gate]) in ((1,) if status != "running" else (1, 3))
    assert status in capsys.readouterr().err
