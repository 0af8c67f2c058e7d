"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.required import fail_if_required

if TYPE_CHECKING:
    from llm_perf_opt.hardware.silicon import Silicon

# Two test processes on two cores: with a thread pool each, torch's workers would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Measured tables are for the tests that ask for them: every other run would read them for its what-if page.
os.environ.setdefault("LLM_PERF_OPT_SILICON", "off")

# Tests start a hundred processes: each would compile our sources, and each test process rewrite every assertion, again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each test process measures on what it has: one must not wait for the runs of another.
# Not a default: a worker would inherit the directory of the process that started it.
os.environ["LLM_PERF_OPT_LEASES"] = str(
    Path(tempfile.gettempdir()) / f"llm-perf-opt-test-leases-{os.getuid()}-{os.getpid()}"
)

# How long an example takes says something about the machine's other work, not about the code.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Whole files go to the test processes, in the order of collection: folders with real runs before the unit tests.

    Left to itself, pytest-xdist begins with the files of most tests, and two processes would wait at the end for one of
    a few slow tests.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test be skipped where every tool must be there."""
    return fail_if_required((yield), os.environ)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let no file of tests be skipped either."""
    return fail_if_required((yield), os.environ)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def silicon() -> Silicon:
    """The measured operator tables of the extra, where it is installed."""
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.hardware.silicon.locate import INSTALL_WORDS, installed

    found = installed()
    if found is None:
        pytest.skip(f"the extra silicon is not installed: {INSTALL_WORDS}")
    return Silicon(found)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real captures that live beside the checkout; tests that need them skip where they are absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real captures are not beside the checkout ({folder.name} folder absent)")
    return folder


@pytest.fixture(autouse=True)
def no_hydra_left_behind() -> Iterator[None]:
    """Hydra keeps its configuration in the process; a test must not see that of another."""
    yield
    if "hydra.core.hydra_config" in sys.modules:
        from hydra.core.hydra_config import HydraConfig

        HydraConfig.instance().cfg = None
