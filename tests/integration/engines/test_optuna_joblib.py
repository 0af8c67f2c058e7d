"""Hydra 1.4 with its Optuna sweeper and its joblib launcher: objectives arrive, exit codes are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.engines.support import CHEAP, Client, Programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_optuna_chooses_jobs_by_their_objective(optuna_python: Path, tmp_path: Path) -> None:
    client = Client(optuna_python, tmp_path, {})
    naps = ",".join(f"[{optuna_python},-c,'import time; time.sleep({nap})']" for nap in (0.01, 0.5))
    code, out = client.run(
        "run",
        *("--multirun", "--json", "hydra/sweeper=optuna_search", "hydra/sweeper/sampler=grid"),
        *("hydra.sweeper.n_trials=2", *CHEAP, f"pipeline.workload.command=choice({naps})"),
        *("sweep.objective=[program]", "hydra.sweep.dir=sweep"),
    )
    assert code == 0, client.errors()
    jobs = json.loads(out)["jobs"]
    assert len(jobs) == 2
    best = min(jobs, key=lambda job: job["metrics"]["program_s"]["value"])
    # What Optuna calls the best value is what the file says.
    assert f"Best value: {best['metrics']['program_s']['value']}" in client.errors()


def test_under_joblib_a_failed_job_is_an_exit_code(optuna_python: Path, tmp_path: Path) -> None:
    client, programs = Client(optuna_python, tmp_path, {}), Programs(tmp_path, ["a", "crash", "b"])
    programs.hold("crash")
    code, out = client.run(
        *("run", "--multirun", "--json", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *CHEAP),
        *(programs.override, "hydra.sweep.dir=sweep"),
    )
    assert code == 1, client.errors()
    assert [job["status"] for job in json.loads(out)["jobs"]] == ["ok", "failed", "ok"]
