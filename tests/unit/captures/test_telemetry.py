"""``telemetry.json`` is read whole or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.documents import read_telemetry
from llm_perf_opt.core.errors import InputError

COLUMNS: dict[str, Any] = {
    "time_s": [0.0, 0.1],
    "clock_hz": [1e9, None],
    "power_w": [None, None],
    "temperature_c": [50.0, 51.0],
    "energy_j": [None, None],
    "memory_bytes": [1.0, 2.0],
    "throttled": [[], ["hot"]],
}


def save(path: Path, **changes: Any) -> Path:
    base = {"schema": 1, "device": "cpu", "columns": COLUMNS, "span_s": 0.1, "new_tokens": 2, "samples": 1}
    path.write_text(json.dumps({**base, **changes}))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = read_telemetry(
        save(tmp_path / "t.json", memory={"decode": {"peak_bytes": 1, "reserved_bytes": 2}})
    )
    assert found.columns.throttled == [[], ["hot"]]
    assert found.memory["decode"].reserved_bytes == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": {**COLUMNS, "power_w": [1.0]}},
        {"columns": {**COLUMNS, "time_s": [0.1, 0.0]}},
        {"columns": {**COLUMNS, "clock_hz": [-1.0, 1.0]}},
        {"span_s": -1.0},
        {"memory_counts": "guess"},
    ],
    ids=["uneven", "backwards", "negative", "span", "counts"],
)
def test_damage_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_telemetry(save(tmp_path / "t.json", **changes))
