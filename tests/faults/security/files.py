"""Planted links, foreign caches, permissions, and paths that lead out: nothing is written through, nothing believed."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.captures.cache import cached
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.command_line import defect
from llm_perf_opt.core.console.logs import run_log
from llm_perf_opt.core.files import atomic_write_text, is_own_file
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.hardware.probe import keep, read_kept
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.directory import find_earlier
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.workloads.outputs.writer import PredictionLog
from tests.faults.fuzz import seeds
from tests.faults.security.check import Check, refused
from tests.unit import nsys_exports

_KEPT = "keep me"


def _precious(folder: Path) -> Path:
    path = folder / "precious"
    path.write_text(_KEPT)
    return path


def _unharmed(path: Path) -> None:
    assert path.read_text() == _KEPT, "it was written through"


def _process_log(stream: str, *, hard: bool) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        target, log = _precious(folder), folder / "logs" / f"run.{stream}.log"
        log.parent.mkdir()
        log.hardlink_to(target) if hard else log.symlink_to(target)
        output = "import sys; print('said'); print('said', file=sys.stderr)"
        run_process([sys.executable, "-c", output], log_dir=log.parent, name="run", timeout_s=60)
        _unharmed(target)
        assert log.read_text() == "said\n"
        assert not log.is_symlink()

    return run


def _log_directory(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "logs").symlink_to(folder / "elsewhere")
    with refused("symbolic link"):
        run_process([sys.executable, "-c", "print(1)"], log_dir=folder / "logs", name="run", timeout_s=60)
    assert not list((folder / "elsewhere").iterdir())


def _pipe_for_a_log(folder: Path) -> None:
    """A named pipe that nobody reads would hold the run up for ever."""
    (folder / "logs").mkdir()
    os.mkfifo(folder / "logs" / "run.stdout.log")
    run_process([sys.executable, "-c", "print(1)"], log_dir=folder / "logs", name="run", timeout_s=60)
    assert (folder / "logs" / "run.stdout.log").is_file()


def _run_log(folder: Path) -> None:
    target = _precious(folder)
    (folder / "run.log").symlink_to(target)
    with refused("symbolic link"):
        run_log(folder)
    _unharmed(target)


def _lock(folder: Path) -> None:
    target = _precious(folder)
    (folder / "run.lock").symlink_to(target)
    with refused("is a link"), hold(folder):
        pass
    _unharmed(target)


def _whole_file(folder: Path) -> None:
    target = _precious(folder)
    (folder / "summary.json").symlink_to(target)
    atomic_write_text(folder / "summary.json", "new")
    _unharmed(target)
    assert not (folder / "summary.json").is_symlink()


def _stage_folder(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    artifacts = Artifacts.for_run(folder / "run")
    (artifacts.root / "nsys").symlink_to(folder / "elsewhere")
    with refused("leads out of the run directory"):
        artifacts.out_dir("nsys")


def _scratch_folder(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    artifacts = Artifacts.for_run(folder / "run")
    (artifacts.root / "tmp").symlink_to(folder / "elsewhere")
    with refused("leads out of the run directory"):
        artifacts.tmp_dir("nsys")
    assert not list((folder / "elsewhere").iterdir())


def _predictions(folder: Path) -> None:
    target = _precious(folder)
    (folder / "predictions.jsonl").symlink_to(target)
    with refused("symbolic link"):
        PredictionLog(folder / "predictions.jsonl", "w")
    _unharmed(target)


def _leaving(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with refused("not inside the run directory"):
            Artifacts.for_run(folder / "run").path(name)

    return run


def _listed_elsewhere(folder: Path) -> None:
    """A manifest that lists files outside of its run has them neither moved nor read."""
    target = _precious(folder)
    run = folder / "run"
    run.mkdir()
    stage = {"status": "ok", "artifacts": ["../precious", str(target), "a/../../precious"]}
    document = {
        "run_id": "x", "started": "2026-01-01T00:00:00+00:00", "command": [], "stages": {"../..": stage, "nsys": stage},
        "files": ["manifest.json", "../precious", str(target)],
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(document))
    earlier = find_earlier(run)
    assert earlier is not None
    earlier.set_aside()
    _unharmed(target)
    assert target.is_file()


def _not_listed(folder: Path) -> None:
    (folder / "nsys").mkdir()
    planted = folder / "nsys" / "run.sqlite"
    planted.write_text("x")
    stage = {"status": "ok", "artifacts": ["nsys/other.sqlite"]}
    (folder / "manifest.json").write_text(json.dumps({"files": ["manifest.json"], "stages": {"nsys": stage}}))
    assert own_files(folder, "nsys", [planted]) == []


# --- caches ----------------------------------------------------------------------------------------------


def _export(folder: Path) -> Path:
    rows = [nsys_exports.kernel(100, 150, 1, 1)]
    return nsys_exports.write_export(folder / "e.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}, {1: "gemm"})


def _cache_entry(damage: Callable[[Path, Path], None]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path, cache = _export(folder), folder / "cache"
        cached(path, read_nsys_sqlite, directory=cache, smallest=0)
        (entry,) = cache.iterdir()
        damage(entry, folder)
        assert cached(path, read_nsys_sqlite, directory=cache, smallest=0).names[0] == "gemm"

    return run


def _renamed(entry: Path) -> bytes:
    return entry.read_bytes().replace(b'"gemm"', b'"gexm"')


def _one_letter(entry: Path, folder: Path) -> None:
    entry.write_bytes(_renamed(entry))


def _cut(entry: Path, folder: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:100])


def _for_everybody(entry: Path, folder: Path) -> None:
    _rewrite(entry)
    entry.chmod(0o666)


def _linked(entry: Path, folder: Path) -> None:
    _rewrite(entry)
    entry.rename(folder / "planted")
    entry.symlink_to(folder / "planted")


def _rewrite(entry: Path) -> None:
    """Change a name, with checksums that fit: only the file's owner and kind tell."""
    with np.load(entry, allow_pickle=False) as archive:
        members = {name: archive[name] for name in archive.files}
    head = members["head"].tobytes().replace(b'"gemm"', b'"gexm"')
    members["head"] = np.frombuffer(head, np.uint8)
    with entry.open("wb") as stream:
        np.savez(stream, **members)


class _Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


def _pickled(entry: Path, folder: Path) -> None:
    with entry.open("wb") as stream:
        np.savez(stream, allow_pickle=True, head=np.array([_Bomb(folder / "unpickled")], dtype=object))


def _pickled_entry(folder: Path) -> None:
    _cache_entry(_pickled)(folder)
    assert not (folder / "unpickled").exists(), "it was unpickled"


def _probe(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / "kept.json"
        path.write_text(json.dumps(seeds.probes()[0]))
        assert read_kept(path) is not None
        change(path)
        assert read_kept(path) is None

    return run


def _negative(path: Path) -> None:
    document = json.loads(path.read_text())
    document["flops_per_s"] = {"float32": -1e12}
    path.write_text(json.dumps(document))


# --- permissions -----------------------------------------------------------------------------------------


def _details_private(folder: Path) -> None:
    place = Path(str(defect(ValueError("x")).data["details"]))
    try:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    finally:
        place.unlink()


def _umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write_text(folder / "private.json", "x")
        run_process([sys.executable, "-c", "print(1)"], log_dir=folder / "logs", name="n", timeout_s=60)
        handler = run_log(folder)
        handler.close()
    finally:
        os.umask(before)
    for path in (folder / "private.json", folder / "logs" / "n.stdout.log", folder / "run.log"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path.name


def _nothing_for_everybody(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        made = [atomic_write_text(folder / "a.json", "x")]
        keep(folder / "probe.json", _probe_result())
        made += [folder / "probe.json", *_cache_files(folder)]
    finally:
        os.umask(before)
    for path in made:
        assert not path.stat().st_mode & stat.S_IWOTH, path.name
        assert is_own_file(path)


def _probe_result() -> Any:
    from llm_perf_opt.hardware.probe import ProbeResult

    return ProbeResult(**seeds.probes()[0])


def _cache_files(folder: Path) -> list[Path]:
    cached(_export(folder), read_nsys_sqlite, directory=folder / "cache", smallest=0)
    return list((folder / "cache").iterdir())


def _checks() -> Iterator[Check]:
    for stream in ("stdout", "stderr"):
        yield Check("links", f"a program's {stream} log, a symbolic link", _process_log(stream, hard=False))
        yield Check("links", f"a program's {stream} log, a hard link", _process_log(stream, hard=True))
    yield Check("links", "a folder of logs that is a link", _log_directory)
    yield Check("links", "a named pipe in place of a log", _pipe_for_a_log)
    yield Check("links", "run.log", _run_log)
    yield Check("links", "run.lock", _lock)
    yield Check("links", "a whole file replaces a link", _whole_file)
    yield Check("links", "a stage's folder", _stage_folder)
    yield Check("links", "the scratch folder", _scratch_folder)
    yield Check("links", "predictions that are appended to", _predictions)
    for name in ("../x", "/etc/x", "a/../../x", "."):
        yield Check("paths", f"{name} leaves the run directory", _leaving(name))
    yield Check("paths", "a manifest that lists files elsewhere", _listed_elsewhere)
    yield Check("paths", "a file that the manifest does not list", _not_listed)
    for what, damage in {
        "with one letter changed": _one_letter,
        "cut short": _cut,
        "that everybody can write": _for_everybody,
        "that is a link": _linked,
    }.items():
        yield Check("caches", f"an entry {what}", _cache_entry(damage))
    yield Check(
        "caches", "a kept measurement that everybody can write", _probe(lambda path: path.chmod(0o666))
    )
    yield Check("caches", "a kept measurement below zero", _probe(_negative))
    yield Check("caches", "a kept measurement cut short", _probe(lambda path: path.write_text("{") and None))
    yield Check("unpickling", "a cache entry that is a pickle", _pickled_entry)
    yield Check("permissions", "details of a defect are for their user alone", _details_private)
    yield Check("permissions", "the user's umask holds for results, logs and run.log", _umask)
    yield Check("permissions", "no file of ours is for everybody to write", _nothing_for_everybody)


CHECKS = tuple(_checks())
