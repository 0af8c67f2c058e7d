"""Conformance suite for engines of the stage ``serve``.

Derive a class from :class:`EngineConformance` in a test file, name the engine, and pytest runs the suite::

    class TestVllm(EngineConformance):
        engine = EngineName.vllm
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.stages.serve.config import EngineName, ServeConfig
from llm_perf_opt.stages.serve.engines import HOST, Engine, ServerSettings, make_engine


class EngineConformance:
    """The suite; see the module's text for how to use it."""

    engine: ClassVar[EngineName]
    """Which engine."""

    def make(self, **keys: object) -> Engine:
        """Return the engine with settings of ``pipeline.serve``."""
        if self.engine is EngineName.attach:
            keys.setdefault("url", f"http://{HOST}:1")
        return make_engine(ServeConfig(engine=self.engine, **keys))  # type: ignore[arg-type]

    def settings(self, tmp_path: Path) -> ServerSettings:
        """Return what a server is started with."""
        return ServerSettings(str(tmp_path / "a checkpoint"), 12345, steps_file=tmp_path / "steps.jsonl")

    def test_it_declares_itself(self) -> None:
        """Name, health routes and a way to get it."""
        engine = self.make()
        assert engine.name is self.engine
        assert all(path.startswith("/") for path in engine.health_paths)
        assert engine.health_paths
        assert bool(engine.install) == engine.is_started

    def test_the_command_is_a_pure_list_of_arguments(self, tmp_path: Path) -> None:
        """Checkpoint and port are in it, it listens on this machine only, and nothing is written."""
        engine = self.make()
        command = engine.command(self.settings(tmp_path))
        assert command == engine.command(self.settings(tmp_path))
        assert all(isinstance(part, str) and part for part in command)
        if not engine.is_started:
            assert command == []
            return
        assert str(tmp_path / "a checkpoint") in command
        assert "12345" in command
        assert HOST in command
        assert "0.0.0.0" not in command
        assert list(tmp_path.iterdir()) == []

    def test_the_users_program_and_arguments_win(self, tmp_path: Path) -> None:
        """``executable`` comes first, ``args`` last, ``env`` over the engine's own variables."""
        if not self.make().is_started:
            return
        engine = self.make(
            executable=["/opt/engine", "run"], args=["--own", "x"], env={"PYTHONPATH": "/mine", "OWN": "1"}
        )
        command = engine.command(self.settings(tmp_path))
        assert command[:2] == ["/opt/engine", "run"]
        assert command[-2:] == ["--own", "x"]
        environment = engine.environment(self.settings(tmp_path))
        assert environment["OWN"] == "1"
        assert environment["PYTHONPATH"].endswith("/mine")

    def test_a_program_that_is_missing_is_found_out_before_the_start(self) -> None:
        """The problem names the program and how to get it."""
        if not self.make().is_started:
            return
        (problem,) = self.make(executable=["/nowhere/engine"]).problems()
        assert "/nowhere/engine" in problem.message
        assert problem.fix

    def test_requests_have_a_fixed_length(self) -> None:
        """Fields are JSON, and the end token is ignored one way or the other."""
        text = json.dumps(self.make().request_fields())
        assert "ignore_eos" in text or "eos_token_id" in text

    def test_any_log_can_be_read(self) -> None:
        """Nothing in a log can break the engine."""
        for log in ("", "\x00\xff" * 100, "version version version", "Iteration("):
            assert self.make().version(log) is None
