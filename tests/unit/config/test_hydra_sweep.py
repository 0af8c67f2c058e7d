"""Handing jobs over: those that an engine lost are reported, whoever chose them and whatever comes after."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from llm_perf_opt.config.hydra_bridge.launch import Engine, HandedJob, LostJob, run_sweep
from llm_perf_opt.core.errors import ToolError

Overrides = Sequence[Sequence[str]]
LOST = JobReturn(_return_value=RuntimeError("it was cancelled"), status=JobStatus.FAILED)
DONE = JobReturn(_return_value=0.5, status=JobStatus.COMPLETED)


class Refused(Exception):
    """As submitit raises it."""


Refused.__module__ = "submitit.core.utils"


class Queue:
    """A launcher that gives back prepared results, a list for each call."""

    def __init__(self, *results: list[JobReturn] | Exception) -> None:
        self.results = list(results)

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> list[JobReturn]:
        found = self.results.pop(0)
        if isinstance(found, Exception):
            raise found
        assert len(found) == len(job_overrides)
        return found


class Search:
    """A sweeper that asks for three jobs, in two batches."""

    def __init__(self, end: Exception | None, **options: Any) -> None:
        self.end = end
        self.launcher = Plugins.instance().instantiate_launcher(**options)

    def sweep(self, arguments: list[str]) -> None:
        assert arguments == ["model=llama_tiny"]
        self.launcher.launch([["infer.batch_size=1"], ["infer.batch_size=2"]], initial_job_idx=0)
        self.launcher.launch([["infer.batch_size=4"]], initial_job_idx=2)
        if self.end is not None:
            raise self.end


def _sweep(jobs: Sequence[HandedJob] | None, *overrides: str, folder: Path) -> list[LostJob]:
    lost: list[LostJob] = []
    run_sweep(
        lambda raw: None,
        jobs,
        ["model=llama_tiny", f"hydra.sweep.dir={folder}", *overrides],
        config_dir=None,
        config_name="config",
        on_lost=lost.append,
    )
    return lost


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*results: list[JobReturn] | Exception, end: Exception | None = None) -> None:
        launcher = Queue(*results)
        monkeypatch.setattr(Plugins, "instantiate_launcher", lambda self, **options: launcher)
        monkeypatch.setattr(Plugins, "instantiate_sweeper", lambda self, **options: Search(end, **options))

    return use


def test_jobs_that_a_sweeper_chose_and_an_engine_lost(queue: Callable[..., None], tmp_path: Path) -> None:
    queue([DONE, LOST], [LOST])
    assert _sweep(None, folder=tmp_path) == [
        LostJob("1", ["infer.batch_size=2"], "it was cancelled"),
        LostJob("2", ["infer.batch_size=4"], "it was cancelled"),
    ]
    assert "instantiate_launcher" not in vars(Plugins.instance())


def test_a_search_in_which_no_job_has_the_objective_is_no_defect(
    queue: Callable[..., None], tmp_path: Path
) -> None:
    queue([LOST, LOST], [LOST], end=ValueError("No trials are completed yet."))
    assert len(_sweep(None, folder=tmp_path)) == 3
    queue([DONE, DONE], [DONE], end=ValueError("another"))
    with pytest.raises(ValueError, match="another"):
        _sweep(None, folder=tmp_path)


def test_a_refused_batch_does_not_drop_the_reasons_of_earlier_ones(
    queue: Callable[..., None], tmp_path: Path
) -> None:
    queue([DONE, LOST], Refused("no such partition"))
    jobs = [HandedJob([f"infer.batch_size={n}"], str(n)) for n in range(1, 4)]
    lost: list[LostJob] = []
    with pytest.raises(ToolError, match="no such partition"):
        run_sweep(
            lambda raw: None,
            jobs,
            ["model=llama_tiny", "hydra.sweeper.max_batch_size=2", f"hydra.sweep.dir={tmp_path}"],
            config_dir=None,
            config_name="config",
            on_lost=lost.append,
        )
    assert lost == [LostJob("2", ["infer.batch_size=2"], "it was cancelled")]


def test_a_ray_cluster_that_nobody_listens_at_is_refused_before_ray_tries() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{bound.getsockname()[1]}"  # bound, but not listening
        for address in (closed, f"ray://{closed}", "127.0.0.1:99999"):
            with pytest.raises(ToolError, match="no Ray cluster"):
                Engine("ray", False, None, address).check_reachable()
        bound.listen()
        Engine("ray", False, None, closed).check_reachable()
    for unchecked in (None, "auto", "local"):
        Engine("ray", False, None, unchecked).check_reachable()
