"""Both forms of a wall-clock file, and every mistake in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.core.errors import InputError
from tests.text_facts import mentions


def write(folder: Path, document: Any) -> Path:
    path = folder / "wall.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def engine_document(**changes: Any) -> dict[str, Any]:
    repeat = {
        "preprocess_s": 0.01, "vision_s": 0.2, "prefill_s": 0.1, "decode_s": 0.9,
        "token_s": [0.3, 0.3, 0.3], "components": {"sam_s": 0.15},
    }  # fmt: skip
    sample = {
        "id": "a",
        "new_tokens": 4,
        "batch_size": 2,
        "prompt_tokens": 7,
        "facts": {},
        "repeats": [repeat, repeat],
    }
    return {"schema": 1, "workload": {"model": "m", "dtype": "float32"}, "samples": [sample], **changes}


def test_what_the_engine_changed_is_reported_once(tmp_path: Path) -> None:
    """That weights are random is said of the workload; other notes are the engine's alone."""
    notes = ["random weights: timings are real, the text is meaningless", "model.compile=true: the experts …"]
    clock = load_timings(write(tmp_path, engine_document(notes=notes)))
    assert clock.notes == ["model.compile=true: the experts …"]
    assert load_timings(write(tmp_path, engine_document(notes=None))).notes == []


def test_the_short_form_with_nested_vision(tmp_path: Path) -> None:
    clock = load_timings(
        write(tmp_path, {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074})
    )
    assert clock.prefill_includes_vision
    assert clock.decode_steps == 64
    assert clock.timings.ttft_s is not None
    assert clock.timings.ttft_s.median == 0.0983
    assert clock.timings.tpot_s is not None
    assert clock.timings.tpot_s.median == pytest.approx(0.7074 / 64)
    assert clock.timings.tokens_per_s is not None
    assert clock.timings.tokens_per_s.median == pytest.approx(90.5, abs=0.05)
    assert clock.workload.samples == 20


def test_the_short_form_with_vision(tmp_path: Path) -> None:
    clock = load_timings(
        write(
            tmp_path,
            {
                "vision_s": 0.2,
                "prefill_s": 0.1,
                "decode_s": 1.0,
                "new_tokens": 11,
                "decode_steps": 10,
                "batch_size": 4,
            },
        )
    )
    assert not clock.prefill_includes_vision
    assert clock.timings.ttft_s is not None
    assert clock.timings.ttft_s.median == pytest.approx(0.3)
    assert clock.timings.tokens_per_s is not None
    assert clock.timings.tokens_per_s.median == pytest.approx(40.0)


def test_nothing_is_made_up_from_a_few_numbers(tmp_path: Path) -> None:
    clock = load_timings(write(tmp_path, {"decode_s": 1.0}))
    assert clock.timings.tpot_s is None
    assert clock.timings.ttft_s is None
    assert clock.timings.tokens_per_s is None
    assert clock.workload.samples is None


def test_the_engines_document(tmp_path: Path) -> None:
    clock = load_timings(write(tmp_path, engine_document()))
    timings = clock.timings
    assert timings.ttft_s is not None
    assert timings.ttft_s.median == pytest.approx(0.3)
    assert timings.ttft_s.n == 2
    assert timings.tpot_s is not None
    assert timings.tpot_s.n == 6
    assert timings.tokens_per_s is not None
    assert timings.tokens_per_s.median == pytest.approx(3 * 2 / 0.9)
    assert clock.decode_steps == 3
    assert timings.components["sam_s"].median == 0.15
    assert clock.sample_totals["a"].seconds == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[1, 2]", "prefill_s"),
        ({"prefil_s": 0.1}, "prefil_s"),
        ({"prefill_s": -1}, "prefill_s"),
        ({"prefill_s": "fast"}, "prefill_s"),
        ({"prefill_s": True}, "prefill_s"),
        ({"samples": 2.5}, "samples"),
        ({"decode_s": 0}, "decode_s"),
        (engine_document(samples=[{"id": "a"}]), None),
        (engine_document(samples=["a"]), None),
        ({"samples": []}, None),
        ({"components": {"sam_s": "x"}, "decode_s": 1.0}, "components.sam_s"),
        ({"components": [1.0]}, "components"),
        ({"device": 7}, "device"),
        ({"prefill_includes_vision": "yes"}, "prefill_includes_vision"),
        ('{"decode_s": 1e999}', "inf"),
    ],
)
def test_mistakes_are_named(document: Any, named: str | None, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    with pytest.raises(InputError) as caught:
        load_timings(path)
    assert caught.value.exit_code == 3 and str(path) in caught.value.message
    assert named is None or mentions(caught.value.message, named)


def test_a_mistyped_key_is_guessed_and_an_unknown_one_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as near:
        load_timings(write(tmp_path, {"prefil_s": 0.1}))
    assert near.value.data["key"] == "prefil_s" and mentions(near.value.hint, "'prefill_s'")
    with pytest.raises(InputError) as far:
        load_timings(write(tmp_path, {"qqqq": 0.1}))
    assert far.value.data["key"] == "qqqq" and mentions(
        far.value.hint, "preprocess_s", "prefill_s", "decode_s"
    )


def test_not_finite_and_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid JSON"):
        load_timings(write(tmp_path, '{"decode_s": NaN}'))
    with pytest.raises(InputError, match="not valid JSON"):
        load_timings(write(tmp_path, '{"decode_s": Infinity}'))
    with pytest.raises(InputError, match="cannot read"):
        load_timings(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\x1f\x8b\x00\xff")
    with pytest.raises(InputError, match="not valid JSON"):
        load_timings(tmp_path / "binary.json")


def test_a_null_key_is_a_key_left_out(tmp_path: Path) -> None:
    short = {"new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.8}
    given = load_timings(write(tmp_path, {**short, "decode_steps": None, "prefill_includes_vision": None}))
    left_out = load_timings(write(tmp_path, short))
    assert given == left_out
    assert given.decode_steps == 8
    assert given.prefill_includes_vision


@pytest.mark.parametrize("stopped", ["narrow", "time", None])
def test_how_often_was_measured_and_why_not_more_often(tmp_path: Path, stopped: str | None) -> None:
    measuring = None if stopped is None else {"repeats": 2, "stopped": stopped}
    timings = load_timings(write(tmp_path, engine_document(measuring=measuring))).timings
    assert (timings.repeats, timings.stopped) == (2, stopped)
