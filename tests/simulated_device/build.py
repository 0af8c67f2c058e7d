"""Compile the simulated device, once for its sources, its torch and its compiler."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"


def compiler() -> str | None:
    """Return the C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def library_path() -> Path:
    """Return the built library; builds it when its sources, torch or the compiler changed."""
    import torch

    found = compiler()
    if found is None:
        raise FileNotFoundError("no C++ compiler (g++, or what CXX names) to build the simulated device")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    texts = [path.read_text() for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256("\0".join([torch.__version__, version, *texts]).encode()).hexdigest()[:16]
    library = _cache() / f"simulated_device-{key}.so"
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes: the second waits for the first's library
        if not library.exists():
            _build(found, library)
    return library


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llm-perf-opt-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build(found: str, library: Path) -> None:
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    folders = [include, include / "torch/csrc/api/include", include / "kineto"]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = ["-O1", "-w", "-fPIC", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:

        def compile_one(source: Path) -> str:
            target = f"{scratch}/{source.stem}.o"
            _run([found, "-c", *flags, *(f"-I{folder}" for folder in folders), str(source), "-o", target])
            return target

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_one, sorted(SOURCES.glob("*.cpp"))))
        made = f"{scratch}/library.so"
        libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
        _run([found, "-shared", *objects, *libraries, "-o", made])
        Path(made).replace(library)


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stderr[-4000:]}")
