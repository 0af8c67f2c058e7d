"""Times of modules from ranges: nested calls once, other phases inside taken off, and how often a phase was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.timeline.attribution import Attribution, attribute
from llm_perf_opt.analysis.timeline.tables import module_host_shares, phase_counts, split_by_shares
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.summary import Timings
from tests.unit.kineto_traces import annotation, document, write
from tests.unit.summaries import timings


def read(tmp_path: Path, *events: dict[str, Any]) -> tuple[Timeline, Attribution]:
    timeline = read_kineto(write(tmp_path / "t.json", document(list(events)))).timeline
    return timeline, attribute(timeline)


def test_module_times_count_nested_calls_once(tmp_path: Path) -> None:
    found = module_host_shares(
        *read(
            tmp_path,
            annotation("decode", 0.0, 100.0),
            annotation("module:layers.0", 10.0, 30.0),
            annotation("module:layers.0.mlp", 15.0, 10.0),
            annotation("module:layers.0", 50.0, 20.0),
            annotation("sam", 200.0, 5.0),  # no range names its phase
        )
    )
    assert found == {
        ("layers.0", "decode"): pytest.approx(0.5),
        ("layers.0.mlp", "decode"): pytest.approx(0.1),
    }


def test_a_component_around_a_module_of_the_same_name_counts_once(tmp_path: Path) -> None:
    found = module_host_shares(
        *read(
            tmp_path,
            annotation("vision", 0.0, 100.0),
            annotation("sam", 0.0, 90.0),
            annotation("module:sam", 1.0, 88.0),
            annotation("prefill", 200.0, 100.0),
            annotation("projector", 210.0, 50.0),  # it belongs to vision by name, but ran elsewhere
        )
    )
    assert found == {("sam", "vision"): pytest.approx(0.9)}


def test_module_shares_are_of_the_outermost_range_of_their_phase(tmp_path: Path) -> None:
    found = module_host_shares(
        *read(
            tmp_path,
            annotation("decode", 0.0, 100.0),
            annotation("decode_step", 0.0, 50.0),
            annotation("module:layers.0", 10.0, 30.0),
            annotation("decode_step", 50.0, 50.0),
            annotation("module:layers.0", 55.0, 20.0),
        )
    )
    assert found == {("layers.0", "decode"): pytest.approx(0.5)}


def test_a_phase_inside_a_phase_is_not_part_of_it(tmp_path: Path) -> None:
    found = module_host_shares(
        *read(
            tmp_path,
            annotation("prefill", 0.0, 100.0),
            annotation("module:model", 0.0, 100.0),
            annotation("vision", 10.0, 80.0),
            annotation("module:model.vit", 10.0, 40.0),
            annotation("module:model.lm", 90.0, 10.0),
        )
    )
    assert found == {
        ("model", "prefill"): pytest.approx(1.0),
        ("model.lm", "prefill"): pytest.approx(0.5),
        ("model.vit", "vision"): pytest.approx(0.5),
    }


def test_how_often_a_phase_was_run(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        start = 1000.0 * number
        events += [annotation("prefill", start, 100.0), annotation("decode", start + 200, 300.0)]
        events += [annotation("decode_step", start + 200 + 100 * step, 90.0) for step in range(2)]
    assert phase_counts(*read(tmp_path, *events)) == {"prefill": 3, "decode": 6}
    # A decode without ranges of its steps tells no number of steps.
    assert phase_counts(*read(tmp_path, annotation("decode", 0.0, 300.0))) == {}


SHARES = {("lm", "prefill"): 0.5, ("a.0.b", "prefill"): 0.2, ("vit", "vision"): 0.9, ("lm", "decode"): 0.25}


@pytest.mark.parametrize(
    ("measured", "nested", "expected"),
    [
        (timings(vision=0.1, prefill=0.4, decode=2.0, tpot=0.02), False, {"prefill": 0.2, "vision": 0.09, "decode": 0.005}),
        (timings(vision=0.1, prefill=0.4), True, {"prefill": 0.15, "vision": 0.09}),
        (timings(prefill=0.4), True, {}),
        (timings(decode=2.0), False, {}),
        (Timings(), False, {}),
    ],
)  # fmt: skip
def test_measured_times_are_split(measured: Timings, nested: bool, expected: dict[str, float]) -> None:
    found = split_by_shares(measured, SHARES, prefill_includes_vision=nested)
    kept = {phase: seconds for (module, phase), seconds in found.items() if module in ("lm", "vit")}
    assert kept == pytest.approx(expected)


def test_a_text_model_keeps_its_prefill() -> None:
    found = split_by_shares(timings(prefill=0.4), {("lm", "prefill"): 0.5}, prefill_includes_vision=True)
    assert found == {("lm", "prefill"): pytest.approx(0.2)}


def test_a_list_of_layers_holds_what_is_called_inside_it() -> None:
    found = split_by_shares(timings(prefill=1.0), {("a.0.b", "prefill"): 0.2, ("a.1", "prefill"): 0.3})
    assert found["a", "prefill"] == pytest.approx(0.5)
    assert found["a.0", "prefill"] == pytest.approx(0.2)


def test_a_phase_that_took_no_time_has_no_shares(tmp_path: Path) -> None:
    timeline, attribution = read(
        tmp_path, annotation("decode", 5.0, 0.0), annotation("module:layers.0", 5.0, 0.0)
    )
    assert module_host_shares(timeline, attribution) == {}
