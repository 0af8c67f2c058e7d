from __future__ import annotations

import subprocess
import sys

import pytest

from llm_perf_opt.hardware.silicon import open_silicon
from llm_perf_opt.hardware.silicon.locate import SWITCH, Installation


def test_switched_off_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert open_silicon() is None


def test_nothing_heavy_is_imported_before_a_table_is_asked_for() -> None:
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
