"""``improve --search optuna`` where Optuna is installed: its unit tests, and one whole search on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.engines.support import REPOSITORY

TESTS = "tests/unit/improve/test_optuna_search.py"
TINY = (
    "model=llama_tiny",
    "model.arch.num_hidden_layers=1",
    "infer.max_new_tokens=3",
    "dataset.synthetic_tokens=8",
    "hardware.probe=false",
    "pipeline.static_analysis.enable=false",
)


def started(python: Path, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}",
        "XDG_STATE_HOME": str(cwd),
    }
    return subprocess.run(
        [str(python), "-m", *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False
    )


def test_what_is_skipped_without_optuna_passes_with_it(optuna_python: Path) -> None:
    done = started(optuna_python, "pytest", "-o", "addopts=", "-p", "no:cacheprovider", TESTS, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "5 passed, 1 skipped" in done.stdout, done.stdout  # the one is about Optuna not being there


def test_the_configuration_works_with_hydra_1_4(optuna_python: Path) -> None:
    """The main environment has Hydra 1.3; private modules of both releases are imported (``config/hydra_bridge``)."""
    version = subprocess.run(
        [str(optuna_python), "-c", "import hydra; print(hydra.__version__)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert version.stdout.startswith("1.4.")
    options = ("-o", "addopts=", "-p", "no:cacheprovider", "-q", "-k", "not is_not_installed")
    done = started(optuna_python, "pytest", *options, "tests/unit/config", cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_a_whole_search(optuna_python: Path, tmp_path: Path) -> None:
    done = started(
        optuna_python,
        *("llm_perf_opt", "improve", *TINY, "--search", "optuna", "--trials", "2", "--pairs", "8", "--json"),
        *("--only", "preallocated-cache", "--only", "inference-mode", "--budget", "200s", "--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["method"]["search"] == "optuna"
    assert found["method"]["tests"] == 3
    assert 1 <= len(found["tried"]) <= 3
    assert all(trial["output"] == "equal" for trial in found["tried"])
