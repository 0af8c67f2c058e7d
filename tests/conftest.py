"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from llm_perf_opt.process.tools import HIDE
from tests.durations import longest_first
from tests.needs import VARIABLE, captures, fail_if_required, need, path_without_hidden, skip_summary

if TYPE_CHECKING:
    from llm_perf_opt.hardware.silicon import Silicon

# Nothing that collecting makes is garbage; the collector would look at all of it again and again.
gc.disable()

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
# Where every tool is required, that is in CI, there are more of them.
settings.register_profile(
    "any-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=60 if os.environ.get(VARIABLE) == "1" else 40,
)
settings.load_profile("any-machine")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Take hidden programs off ``PATH``; whole files go to the test processes, in the order of collection (:mod:`tests.durations`)."""
    if os.environ.get(HIDE):
        _hide_programs(config)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if os.environ.get("PYTEST_XDIST_WORKER") or not config.getoption("numprocesses", None):
        from tests.warm import compose_once

        compose_once.install()
    elif not config.option.collectonly:
        from tests.warm import start_server

        start_server()


def _hide_programs(config: pytest.Config) -> None:
    before = os.environ.get("PATH", os.defpath)
    links = Path(tempfile.mkdtemp(prefix="llm-perf-opt-test-path-"))
    os.environ["PATH"] = path_without_hidden(before, links)

    def restore() -> None:
        os.environ["PATH"] = before
        shutil.rmtree(links, ignore_errors=True)

    config.add_cleanup(restore)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; mark those of the leg ``engines``."""
    longest_first(items)
    for item in items:
        if any("vllm" in mark.args for mark in item.iter_markers("needs")):
            item.add_marker("engines")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the million objects that stay, and run less often: it took a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose ``needs`` are not met, before any of its fixtures is made."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End with what was skipped and how to make it run."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        for line in skip_summary(terminalreporter.stats.get("skipped", [])):
            terminalreporter.write_line(line)


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
    from llm_perf_opt.hardware.silicon.installation import installed

    need("silicon")
    found = installed()
    assert found is not None
    return Silicon(found)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real captures that live beside the checkout; tests that need them skip where they are absent."""
    need("captures")
    return captures()


@pytest.fixture
def signals_arrive() -> Iterator[None]:
    """Meet signals as a terminal delivers them: under ``nohup``, and in the background of a script, some are ignored."""
    usual = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, action) for number, action in usual.items()}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.fixture(autouse=True)
def no_hydra_left_behind() -> Iterator[None]:
    """Hydra keeps its configuration in the process; a test must not see that of another."""
    yield
    if "hydra.core.hydra_config" in sys.modules:
        from hydra.core.hydra_config import HydraConfig

        HydraConfig.instance().cfg = None
