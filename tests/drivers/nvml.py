"""Compile the stand-in driver library and run questions against it through nvidia-ml-py itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.needs import need

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build(folder: Path, *kinds: str) -> Path:
    """Return a folder with ``libnvidia-ml.so.1``; ``kinds``: ``MIG``, ``OLD_DRIVER``, ``BUSY``."""
    need("nvidia-ml-py", "compiler")
    compiler = shutil.which(os.environ.get("CC") or "cc")
    assert compiler is not None
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-fPIC", "-Wall", "-Werror", *(f"-D{kind}" for kind in kinds)]
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run(
        [compiler, *options, str(SOURCE), "-o", library], check=True, capture_output=True, timeout=60
    )
    return folder


def query(folder: Path, code: str, **environment: str) -> str:
    """Run Python code in a process that finds the library where a driver's would be; return what it prints."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
