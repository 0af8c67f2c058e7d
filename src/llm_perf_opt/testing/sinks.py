"""Conformance suite for sinks.

Derive a class from :class:`SinkConformance` in a test file, name the sink, and say how to count what it holds::

    class TestJsonLines(SinkConformance):
        sink = "json_lines"
        def stored(self, folder):
            return [json.loads(line)["id"] for line in (folder / "runs.jsonl").read_text().splitlines()]

The sink must be installed, so that its entry point is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.runs.sinks import Sink, check_sinks, load_sink, send_to_sinks
from llm_perf_opt.summary import Hardware, RunInfo, Summary, Timings, Workload
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.file import save_summary
from llm_perf_opt.summary.statistics import describe


def _timings(seconds: Mapping[str, float]) -> Timings:
    timings = Timings()
    for name, value in seconds.items():
        setattr(timings, name, describe([value, value * 1.1]))
    return timings


class SinkConformance:
    """The suite; see the module's text for how to use it."""

    sink: ClassVar[str]
    """Name of the sink."""

    def prepare(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the sink write into ``folder`` (variables, a server); by default it does so by itself."""

    def stored(self, folder: Path) -> Sequence[str]:
        """Return the ids of the runs that the sink holds, in the order they were sent."""
        raise NotImplementedError("say how to read back what the sink holds")

    def finished_run(self, folder: Path, name: str, **timings: float) -> tuple[Summary, Path]:
        """Return a small finished run below ``folder``."""
        summary = Summary(
            RunInfo(name, "ok", "2026-01-01T00:00:00+00:00", 1.0, ["llm-perf-opt", "run"]),
            {"llm_perf_opt": "1.0", "cpu": {"name": "a processor", "cores": 2}},
            Hardware("a processor", "cpu", {}, None, "none"),
            Workload(model="tiny <&'\" model", device="cpu", dtype="float32"),
            timings=_timings(timings),
        )
        run_dir = folder / name
        run_dir.mkdir(parents=True)
        save_summary(summary, run_dir)
        return summary, run_dir

    def test_it_is_found_by_its_name(self) -> None:
        """The entry point loads a class of the same name that derives from :class:`Sink`."""
        found = load_sink(self.sink)
        assert isinstance(found, Sink)
        assert found.name == self.sink

    def test_it_says_nothing_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prepared as it should be, the check before a run passes."""
        self.prepare(tmp_path, monkeypatch)
        check_sinks([self.sink])

    def test_every_run_arrives_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs with all, some and no metrics arrive, in their order."""
        self.prepare(tmp_path, monkeypatch)
        runs = [
            self.finished_run(tmp_path, "first", tpot_s=0.01, ttft_s=0.1),
            self.finished_run(tmp_path, "second", program_s=2.0),
            self.finished_run(tmp_path, "third"),
        ]
        for summary, run_dir in runs:
            assert send_to_sinks([self.sink], summary, run_dir) == []
        assert list(self.stored(tmp_path)) == ["first", "second", "third"]

    def test_the_run_stays_as_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither the summary nor a file of the run changes."""
        self.prepare(tmp_path, monkeypatch)
        summary, run_dir = self.finished_run(tmp_path, "run", tpot_s=0.01)
        before, files = (
            to_plain(summary),
            {path: sha256_of(path) for path in run_dir.rglob("*") if path.is_file()},
        )
        load_sink(self.sink).write(summary, run_dir)
        assert to_plain(summary) == before
        assert {path: sha256_of(path) for path in run_dir.rglob("*") if path.is_file()} == files
