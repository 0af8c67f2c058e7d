"""Conformance suite for stages.

Derive a class from :class:`StageConformance` in a test file, name the stage, and pytest runs the suite::

    class TestMachineNoise(StageConformance):
        stage = "machine_noise"
        overrides = ("pipeline.machine_noise.samples=20",)

The stage must be installed, so that its entry point is found.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.stage import StageConfig, stage_types
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.runs.assemble import assemble_run
from llm_perf_opt.runs.execute import Outcome, execute
from llm_perf_opt.runs.finish import save_and_render
from llm_perf_opt.stages.base import Stage, StageContext, all_stages

_ROOT_FILES = {
    layout.ENVIRONMENT,
    layout.CONFIG,
    layout.INPUTS,
    layout.HARDWARE,
    layout.MANIFEST,
    layout.SCRATCH,
    "run.log",
}
_FINISHED: dict[type[StageConformance], Path] = {}
"""The run of each suite: its tests look at copies, for a capture takes its time."""


class StageConformance:
    """The suite; see the module's text for how to use it."""

    stage: ClassVar[str]
    """Name of the stage."""
    overrides: ClassVar[Sequence[str]] = ()
    """Settings that make the stage quick enough for a test."""

    def config(self, root: Path) -> AppConfig:
        """Return the configuration with this stage alone."""
        switches = [
            f"pipeline.{name}.enable={'true' if name == self.stage else 'false'}" for name in stage_types()
        ]
        quick = ["hardware.probe=false", f"artifacts.runs_dir={root}"]
        return compose_config([*switches, *quick, *self.overrides])

    def run_stage(self, root: Path) -> Outcome:
        """Run the stage by itself in a run directory."""
        return execute(
            self.config(root),
            Artifacts.for_run(root),
            LogProgress(),
            command=["conformance"],
            overrides=tuple(self.overrides),
            resolved_yaml="conformance: true\n",
        )

    def instance(self) -> Stage:
        """Return the registered stage."""
        return all_stages()[self.stage]

    @pytest.fixture
    def finished(self, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Give a copy of a finished run, made once; override where the stage needs a device the machine lacks."""
        kind = type(self)
        if kind not in _FINISHED:
            root = tmp_path_factory.mktemp(self.stage) / "run"
            record = self.run_stage(root).manifest.stages[self.stage]
            assert record.status in ("ok", "degraded"), record
            _FINISHED[kind] = root
        return Path(shutil.copytree(_FINISHED[kind], tmp_path / "run", symlinks=True))

    def test_it_is_found_by_its_entry_point(self) -> None:
        """Name, place, title and configuration are declared."""
        kind = stage_types()[self.stage]
        assert kind.name == self.stage
        assert kind.title.strip()
        assert isinstance(kind.order, int)
        assert issubclass(kind.config_type, StageConfig)
        assert kind.config_type().enable in (True, False)

    def test_importing_it_is_cheap(self) -> None:
        """Help, checks and reports load every stage: none may bring torch along."""
        kind = type(self.instance())
        code = f"import sys, {kind.__module__}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
        assert run_probe([sys.executable, "-c", code], timeout_s=60.0).ok, (
            f"importing {kind.__module__} imports torch or transformers"
        )

    def test_check_and_plan_write_nothing(self, tmp_path: Path) -> None:
        """Both run before any work, and for ``--plan`` nothing follows."""
        context = StageContext(
            self.config(tmp_path / "run"),
            Artifacts.for_run(tmp_path / "run"),
            LogProgress(),
            tuple(self.overrides),
        )
        stage = self.instance()
        problems = stage.check(context)
        lines = [] if any(p.severity == "skip" for p in problems) else stage.plan(context)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert all(problem.message and problem.fix for problem in problems)
        assert all(isinstance(line, str) and line for line in lines)

    def test_it_writes_only_into_its_own_directories(self, finished: Path) -> None:
        """What it lists is there, and nothing lies elsewhere."""
        assert {path.name for path in finished.iterdir()} <= {self.stage, *_ROOT_FILES}
        scratch = finished / layout.SCRATCH
        assert not scratch.is_dir() or {path.name for path in scratch.iterdir()} <= {
            self.stage,
            layout.WORKLOAD,
        }

    def test_a_second_run_leaves_the_same_files(self, finished: Path) -> None:
        """Idempotent: what the first run left is moved aside, and nothing piles up next to it."""
        before = _files_of_the_last_run(finished)
        self.run_stage(finished)
        assert _files_of_the_last_run(finished) == before

    def test_facts_need_no_scratch(self, finished: Path) -> None:
        """Deleting ``tmp/`` after a run changes no report."""
        before = assemble_run(finished).summary
        shutil.rmtree(finished / layout.SCRATCH, ignore_errors=True)
        assert assemble_run(finished).summary == before

    def test_facts_of_nothing_say_nothing(self, tmp_path: Path) -> None:
        """A stage that failed at once leaves no file."""
        assert self.instance().facts(tmp_path).is_empty()

    def test_damaged_files_are_notes(self, finished: Path) -> None:
        """What was cut off is reported in a note; the other stages' facts must not be lost over it."""
        for path in sorted((finished / self.stage).rglob("*")):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert isinstance(self.instance().facts(finished), Facts)

    def test_what_it_says_reaches_the_reports(self, finished: Path) -> None:
        """Metrics, findings and sections are in the summary, sections and findings on the pages."""
        facts = self.instance().facts(finished)
        assembled = assemble_run(finished)
        save_and_render(assembled.summary, assembled.facts, finished)
        summary = assembled.summary
        assert facts.metrics.keys() <= summary.metrics.keys()
        page = (finished / layout.REPORT_HTML).read_text(encoding="utf-8")
        text = (finished / layout.REPORT_MD).read_text(encoding="utf-8")
        for section in facts.sections:
            assert section in summary.sections
            assert section.title in page
            assert section.title in text
        for finding in facts.findings:
            assert finding.id in {found.id for found in summary.findings}
            assert finding.title in page
            assert finding.title in text


def _files_of_the_last_run(run_dir: Path) -> set[Path]:
    found = {path.relative_to(run_dir) for path in run_dir.rglob("*") if path.is_file()}
    return {path for path in found if not path.parts[0].startswith(layout.EARLIER)}
