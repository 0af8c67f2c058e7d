"""``improve --search optuna`` where Optuna is installed: its unit tests, and one whole search on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.needs import VARIABLE
from tests.support import REPOSITORY
from tests.warm import warm_server

TESTS = ("tests/unit/improve/test_optuna_search.py", "tests/unit/config")
TINY = (
    "model=llama_tiny",
    "model.arch.num_hidden_layers=1",
    "infer.max_new_tokens=3",
    "dataset.synthetic_tokens=8",
    "hardware.probe=false",
    "pipeline.static_analysis.enable=false",
)
AS_A_MODULE = """import runpy, sys
sys.executable, module = sys.argv.pop(1), sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""``PYTHON MODULE …``: what the module starts is started with that Python."""


def started(python: Path, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # What is skipped or repeated more often where all tools are required is decided here.
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'src'}",
        "XDG_STATE_HOME": str(cwd),
    }
    return subprocess.run(
        [str(python), *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def with_hydra_1_4(optuna_python: Path) -> list[str]:
    """The lines about each test of Optuna and of the configuration, run where Optuna and Hydra 1.4 are installed."""
    options = ("-o", "addopts=", "-p", "no:cacheprovider", "-rA", "-k", "not is_not_installed")
    done = started(optuna_python, "-m", "pytest", *options, *TESTS, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout.splitlines()


def test_what_is_skipped_without_optuna_passes_with_it(with_hydra_1_4: list[str]) -> None:
    assert sum(line.startswith(f"PASSED {TESTS[0]}::") for line in with_hydra_1_4) == 5
    (skipped,) = [line for line in with_hydra_1_4 if line.startswith("SKIPPED")]
    assert "Optuna is installed" in skipped


def test_the_configuration_works_with_hydra_1_4(optuna_python: Path, with_hydra_1_4: list[str]) -> None:
    """The main environment has Hydra 1.3; private modules of both releases are imported (``config/hydra_bridge``)."""
    version = subprocess.run(
        [str(optuna_python), "-c", "import hydra; print(hydra.__version__)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert version.stdout.startswith("1.4.")
    files = {line.split("::")[0] for line in with_hydra_1_4 if line.startswith(f"PASSED {TESTS[1]}/")}
    assert files == {
        f"PASSED {path.relative_to(REPOSITORY)}" for path in (REPOSITORY / TESTS[1]).glob("test_*.py")
    }


@pytest.mark.slow
def test_a_whole_search(optuna_python: Path, tmp_path: Path) -> None:
    """Optuna is needed where the search runs; its workers, which only measure, are forked."""
    done = started(
        optuna_python,
        *("-c", AS_A_MODULE, str(warm_server().stand_in), "llm_perf_opt"),
        *("improve", *TINY, "--search", "optuna", "--trials", "2", "--pairs", "8", "--json"),
        *("--only", "preallocated-cache", "--only", "inference-mode", "--budget", "200s", "--out", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["method"]["search"] == "optuna"
    assert found["method"]["tests"] == 3
    assert 1 <= len(found["tried"]) <= 3
    assert all(trial["output"] == "equal" for trial in found["tried"])
