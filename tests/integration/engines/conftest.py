"""Real engines, started once for all their tests; where one is not installed its tests are skipped, and say so.

In CI they fail instead (``tests/needs.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.engines.support import REPOSITORY, write_driver
from tests.needs import environment_python, need

SCRIPTS = REPOSITORY / "scripts" / "engines"


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """Python with the plug-ins of the engines, whose versions do not all go with those of the checkout."""
    need("ray")
    return environment_python("engines")


@pytest.fixture(scope="session")
def optuna_python() -> Path:
    """Python with Hydra 1.4, Optuna and joblib."""
    need("optuna environment")
    return environment_python("optuna")


@pytest.fixture(scope="session")
def history_python() -> Path:
    """Python with DuckDB and MLflow."""
    need("history environment")
    return environment_python("history")


@dataclass(frozen=True)
class Slurm:
    """A Slurm of two nodes with two made-up GPUs each."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """What a client needs."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *argv: str) -> str:
        """Run a command of Slurm."""
        done = subprocess.run(
            argv, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def pid(self, daemon: str) -> int:
        """Return the process of a daemon."""
        return int((self.folder / "pid" / daemon).read_text())

    def start_node(self, name: str) -> None:
        """Start the daemon of a node again."""
        self.command("slurmd", "-f", str(self.folder / "slurm.conf"), "-N", name)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start the real thing, and end it."""
    need("slurm")
    folder = tmp_path_factory.mktemp("slurm")
    up = subprocess.run(
        ["sh", str(SCRIPTS / "slurm-up.sh"), str(folder), str(20_000 + os.getpid() % 20_000)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    try:
        assert up.returncode == 0, up.stderr
        yield Slurm(folder)
    finally:
        subprocess.run(["sh", str(SCRIPTS / "slurm-down.sh"), str(folder)], timeout=60, check=False)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster of a head and two nodes with two made-up GPUs each."""

    address: str
    leases: Path


@pytest.fixture(scope="module")
def ray(engine_python: Path) -> Iterator[Ray]:
    """Start the real thing, and end it."""
    # Not below pytest's own folder: the names of Ray's sockets must stay short.
    folder = Path(tempfile.mkdtemp(prefix="lpo-ray-"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])}
    env |= {
        "LLM_PERF_OPT_LEASES": str(folder / "leases"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Each job has a process of its own, so that workers started beforehand would only import Ray.
        "RAY_prestart_worker_first_driver": "0",
        # Ray starts workers with niceness 15: next to one busy process per core they would have 3 % of a core.
        "RAY_worker_niceness": "0",
        "RAY_TMPDIR": str(folder),
        "PATH": os.pathsep.join([str(write_driver(folder / "driver")), os.environ["PATH"]]),
    }
    with (folder / "cluster.log").open("w") as log:
        cluster = subprocess.Popen(
            [str(engine_python), str(Path(__file__).with_name("ray_cluster.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
        )
    assert cluster.stdin is not None and cluster.stdout is not None
    try:
        address = next((line.strip() for line in cluster.stdout if line[:1].isdigit()), None)
        assert address is not None, (folder / "cluster.log").read_text()
        yield Ray(address, folder / "leases")
    finally:
        cluster.stdin.close()
        cluster.wait(timeout=60)
        cluster.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)
