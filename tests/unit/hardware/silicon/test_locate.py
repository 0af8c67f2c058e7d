from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.expected_times import silicon_use
from llm_perf_opt.config.schema import SiliconTables
from llm_perf_opt.hardware.silicon import open_silicon
from llm_perf_opt.hardware.silicon.installation import (
    MISSING_TEXT,
    OFF_TEXT,
    SWITCH,
    Installation,
    describe_absence,
)


def test_switched_off_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert open_silicon() is None


def test_the_choice_of_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SWITCH, "")
    place = Installation(tmp_path, "0.12.0")
    monkeypatch.setattr("llm_perf_opt.hardware.silicon.lookup.in_use", lambda: place)
    opened = {choice: open_silicon(None, choice) for choice in SiliconTables}
    assert {choice for choice, found in opened.items() if found is None} == {SiliconTables.off}
    assert {c.value: found.framework for c, found in opened.items() if found is not None} == {
        "auto": "vllm",
        "vllm": "vllm",
        "sglang": "sglang",
        "trtllm": "trtllm",
    }


def test_why_there_are_no_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("llm_perf_opt.hardware.silicon.installation.installed", lambda: None)
    assert describe_absence() == MISSING_TEXT and silicon_use(None).reason == MISSING_TEXT
    place = Installation(tmp_path, "0.12.0")
    monkeypatch.setattr("llm_perf_opt.hardware.silicon.installation.installed", lambda: place)
    assert describe_absence() == OFF_TEXT and "hardware.silicon" in OFF_TEXT


def test_nothing_heavy_is_imported_before_a_table_is_requested() -> None:
    code = (
        "import sys; import llm_perf_opt.hardware.silicon as s; s.open_silicon();"
        "print([m for m in ('polars','numpy','pandas','pyarrow','scipy','torch','aiconfigurator_core') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("version", "known"), [("0.12.0", True), ("0.12.7", True), ("0.120.0", False), ("1.0", False)]
)
def test_versions_that_were_checked(tmp_path: object, version: str, known: bool) -> None:
    assert Installation(tmp_path, version).is_known is known  # type: ignore[arg-type]
