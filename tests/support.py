"""Small things several tests need: a command line in-process, a tiny workload, a plug-in stage."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.warm import warm_server

Result = TypeVar("Result")

REPOSITORY = Path(__file__).resolve().parent.parent

QUICK = (
    "infer.max_new_tokens=4",
    "infer.mode=tiny",
    "infer.warmup_rounds=0",
    "run.repeats=1",
    "dataset.generated.pages=1",
    "dataset.generated.max_side=640",
    "hardware.probe=false",
)
"""Overrides that make the default workload as small as it gets."""


def cli(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 240.0,
    anew: bool = False,
    children: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m llm_perf_opt`` in a process of its own, forked from one that has the imports where that is the same.

    ``anew``: in one that imports everything itself; ``children``: what it starts with ``sys.executable`` is forked, too.
    """
    environment = {**os.environ, **(env or {})}
    if not anew and warm_server().can_run(environment):
        return warm_server().run(
            arguments, cwd or Path.cwd(), environment, timeout_s=timeout_s, children=children
        )
    return subprocess.run(
        [sys.executable, "-m", "llm_perf_opt", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def install_example(name: str, target: Path) -> Path:
    """Install a package of ``examples/`` into a directory of its own; return what belongs on ``PYTHONPATH``."""
    # A copy: building writes beside the sources.
    source = Path(shutil.copytree(REPOSITORY / "examples" / name, target / "source"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target / "lib")]
    pip = [sys.executable, "-m", "pip", "install", *options, str(source)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return target / "lib"


HOLD_SIGNALS = "import signal, sys, time\nHELD = {signal.SIGTERM, signal.SIGINT}\nsignal.pthread_sigmask(signal.SIG_BLOCK, HELD)\n"
"""Beginning of a program that takes its signals with ``signal.sigwait(HELD)``.

A handler may miss one: if it becomes pending right before ``time.sleep``, the handler runs only after the sleep.
"""


def within_a_limit(run: Callable[[float], Result], came_far_enough: Callable[[Result], bool]) -> Result:
    """Run a program that is meant to be stopped by its time limit: with a short one first, and with a longer one
    when a busy machine had not brought the program to the point that the test is about."""
    for limit_s in (2.0, 10.0, 60.0):
        result = run(limit_s)
        if came_far_enough(result):
            return result
    raise AssertionError("the program did not come far enough within a minute")


def python_program(text: str, *options: str, python: str = sys.executable) -> str:
    """Return a Python program as an executable file; the kernel takes no interpreter whose path holds a space."""
    message = shlex.join([python, *options])
    return f"#!/bin/sh\n''''exec {message} \"$0\" \"$@\" #'''\n{text}"


def write_program(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def copy_writable(source: Path, target: Path) -> Path:
    """Copy a folder of captures that may be read-only."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return target


def files_below(folder: Path) -> list[str]:
    """List files relative to a folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def imported_modules(arguments: Sequence[str], cwd: Path | None = None) -> set[str]:
    """Return the modules a command line imports."""
    code = (
        "import sys, json, io, contextlib\n"
        "from llm_perf_opt.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = main(sys.argv[1:])\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))
