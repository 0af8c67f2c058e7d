"""Installed plug-ins that are broken: a warning with their name, and the rest works; asked for by name, an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_perf_opt.commands.completion import _leaves
from llm_perf_opt.config import compose as compose_module
from llm_perf_opt.config import store
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.config.hydra_bridge.compose import register_schema
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.stage import stage_types, unusable_stages
from llm_perf_opt.runs.sinks import load_sink
from llm_perf_opt.stages.base import all_stages
from llm_perf_opt.workloads.registry import adapter_class, dataset_class
from tests.support import cli

_HEAD = """
from dataclasses import dataclass, field
from typing import Any
from llm_perf_opt.core.stage import StageConfig, StageResult
from llm_perf_opt.stages.base import Stage

@dataclass
class Config(StageConfig):
    depth: int = 1

class Good(Stage):
    name, order, title, config_type = "broken_one", 15, "t", Config
    def check(self, context): return []
    def plan(self, context): return []
    def run(self, context): return StageResult("ok")
"""
STAGES = {
    "import error": "import no_such_module_anywhere",
    "syntax error": "def (",
    "no such class": "x = 1",
    "exit": "import sys; sys.exit(0)",
    "exit with a text": "import sys; sys.exit('no licence')",
    "quit": "quit()",
    "any exception": "raise RuntimeError('no licence server: token=abcdefgh12345678')",
    "an exception without words": "raise Exception",
    "recursion": "def f(): f()\nf()",
    "assertion": "assert False",
    "memory": "raise MemoryError",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): return '\\n'.join(['x'] * 100000)\nraise E",
    "a function": "def Stage_(): pass",
    "an instance": f"{_HEAD}\nStage_ = Good()",
    "a number": "Stage_ = 3",
    "another class": "class Stage_: pass",
    "another name": f"{_HEAD}\nclass Stage_(Good): name = 'other'",
    "no name": f"{_HEAD}\nclass Stage_(Good): name = None",
    "an order that is no number": f"{_HEAD}\nclass Stage_(Good): order = 'last'",
    "no title": f"{_HEAD}\nclass Stage_(Good): title = None",
    "no configuration": f"{_HEAD}\nclass Stage_(Good): config_type = None",
    "a foreign configuration": f"{_HEAD}\nclass Stage_(Good): config_type = dict",
    "a configuration of strange types": f"{_HEAD}\n@dataclass\nclass C(StageConfig):\n    x: set = field(default_factory=set)\n"
    "class Stage_(Good): config_type = C",
    "abstract": f"{_HEAD}\nclass Stage_(Stage):\n    name, order, title, config_type = 'broken_one', 1, 't', Config",
    "a constructor that fails": f"{_HEAD}\nclass Stage_(Good):\n    def __init__(self): raise OSError('no meter')",
    "a constructor with arguments": f"{_HEAD}\nclass Stage_(Good):\n    def __init__(self, x): pass",
    "a method that is none": f"{_HEAD}\nclass Stage_(Good): run = 3",
    "a flood before it fails": "print('x' * 1000)\nfor _ in range(100_000): print('y' * 100)\nraise OSError",
}  # fmt: skip


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    caches = (stage_types, store.schema_node, register_schema, compose_module.known_keys)

    def make(group: str, code: str, name: str = "broken_one", package: str = "broken-package") -> None:
        module = f"broken_module_{abs(hash((group, code)))}"
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[llm_perf_opt.{group}]\n{name} = {module}:Stage_\n")
        monkeypatch.syspath_prepend(tmp_path)
        for cached in caches:
            cached.cache_clear()

    yield make
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
    register_schema()


@pytest.mark.parametrize("name", STAGES)
def test_a_broken_stage_costs_nothing_but_itself(
    name: str,
    install: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("llm_perf_opt"), "propagate", True)
    install("stages", STAGES[name])
    config = compose_config(["model=llama_tiny"])
    assert "broken_one" not in config.pipeline and set(config.pipeline) == set(stage_types())
    assert {"nsys", "ncu", "torch_profiler"} <= set(all_stages())
    (warning,) = {record.getMessage() for record in caplog.records if record.levelno == logging.WARNING}
    assert "'broken_one' of broken-package" in warning
    assert len(warning) < 700
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="broken_one"):
        compose_config(["pipeline.broken_one.enable=true"])
    with pytest.raises(ConfigError, match="broken_one") as refused:
        compose_config(["+pipeline.broken_one.enable=true"])
    assert "broken-package" in str(refused.value)
    list(_leaves("pipeline.broken_one."))  # completion


@pytest.mark.parametrize(
    "name", ["import error", "exit", "any exception", "recursion", "syntax error", "a number"]
)
def test_a_broken_sink_or_adapter_is_an_error_with_its_name(
    name: str, install: Callable[..., None], tmp_path: Path
) -> None:
    install("sinks", STAGES[name], package="p-sinks")
    install("models", STAGES[name] + "\n", package="p-models")
    install("datasets", STAGES[name] + "\n\n", package="p-datasets")
    for load in (load_sink, adapter_class, dataset_class):
        with pytest.raises(ConfigError, match="broken_one"):
            load("broken_one")


def test_a_built_in_stage_is_not_replaced(install: Callable[..., None]) -> None:
    install("stages", f"{_HEAD}\nclass Stage_(Good): name = 'nsys'", name="nsys")
    assert stage_types()["nsys"].__module__.startswith("llm_perf_opt.")
    assert unusable_stages() == {}


def test_a_good_one_next_to_a_broken_one_works(install: Callable[..., None]) -> None:
    install("stages", "raise OSError", name="bad_one", package="bad")
    install("stages", f"{_HEAD}\nStage_ = Good", package="good")
    assert "broken_one" in compose_config(["pipeline.broken_one.depth=3"]).pipeline
    assert list(unusable_stages()) == ["bad_one"]


def test_a_run_goes_on_without_it(tmp_path: Path, install: Callable[..., None]) -> None:
    install("stages", STAGES["exit"])
    env = {"PYTHONPATH": f"{tmp_path}:{__import__('os').environ.get('PYTHONPATH', '')}"}
    done = cli("run", "--plan", "model=llama_tiny", "hardware.probe=false", cwd=tmp_path, env=env, anew=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("broken_one") == 1
    requested = cli("run", "--plan", "+pipeline.broken_one.enable=true", cwd=tmp_path, env=env, anew=True)
    assert requested.returncode == 2 and "broken_one" in requested.stderr
