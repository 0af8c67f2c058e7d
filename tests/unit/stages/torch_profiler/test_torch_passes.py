"""Exporting traces: torch does not say when the disk was full, so the file is looked at."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.stages.torch_profiler.passes import compress, export_trace


class FakeProfiler:
    """Writes what a profiler with that much room on the disk would have written."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def export_chrome_trace(self, path: str) -> None:
        if self.text is not None:
            Path(path).write_text(self.text)


def test_a_whole_trace_is_kept(tmp_path: Path) -> None:
    path = export_trace(FakeProfiler('{"traceEvents": []\n}\n'), tmp_path / "deep" / "trace.json")
    assert path.read_text().startswith("{")


@pytest.mark.parametrize("text", [None, "", '{"traceEvents": [{"ph": "X", "na'])
def test_a_trace_that_was_not_written_to_the_end_is_an_error(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "trace.json").write_text('{"of": "an earlier run"}')
    with pytest.raises(ToolError) as caught:
        export_trace(FakeProfiler(text), tmp_path / "trace.json")
    assert caught.value.data["path"] == str(tmp_path / "trace.json")


def test_packing_is_reversible_and_repeatable(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text('{"traceEvents": []}' * 1000)
    first = compress(source, tmp_path / "a.json.gz").read_bytes()
    assert first == compress(source, tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress(first) == source.read_bytes()
