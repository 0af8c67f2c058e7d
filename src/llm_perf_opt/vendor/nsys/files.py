"""Files of Nsight Systems captures: what a capture may leave, what is stale, where summaries are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.vendor.fresh import FileState, is_fresh

SUMMARY = "summary.csv"
"""The kernel summary, whatever this version of nsys calls its report."""

_OUTPUTS = ("run.nsys-rep", "run.*.nsys-rep", "run.sqlite", "run.*.sqlite", "run*.qdstrm", "summary*.csv")
_KERNEL_SUMMARIES = (SUMMARY, "*_cuda_gpu_kern_sum.csv", "*_gpukernsum.csv")
_OLD_FOLDERS = (".", "nsys", "stage2/nsys", "tmp/nsys", "tmp/stage2/nsys", "tmp/stage2/*/nsys", "tmp/*/nsys")


def earlier_outputs(folder: Path) -> list[Path]:
    """Return what an earlier capture left in the stage directory."""
    return sorted({path for pattern in _OUTPUTS for path in folder.glob(pattern)})


def remove_earlier_outputs(folder: Path) -> None:
    """Remove an earlier capture: nsys would number on (``run.3.nsys-rep``) or keep the old file, with exit 0."""
    for path in earlier_outputs(folder):
        with explain_os_errors(path):
            path.unlink()


def generated_paths(text: str) -> list[Path]:
    """Return the files nsys says it wrote: the indented lines after ``Generated:``."""
    found: list[Path] = []
    for block in re.findall(r"^Generated:[ \t]*\n((?:[ \t]+/[^\n]*\n?)*)", text, re.MULTILINE):
        found += [Path(line.strip()) for line in block.splitlines() if line.strip()]
    return found


def collect_reports(base: Path, stdout: str, scratch: Path, before: Mapping[str, FileState]) -> list[Path]:
    """Return the fresh reports of a capture, in order of their number.

    A report that nsys could not put in place stays in its scratch directory, with exit code 0: it is moved.
    Files that were there ``before`` and have not changed are never taken for fresh.
    """
    for path in generated_paths(stdout):
        if path.is_relative_to(scratch) and path.suffix == ".nsys-rep" and path.is_file():
            target = base.with_name(f"{base.name}.nsys-rep")
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.move(path, temporary)
    pattern = re.compile(re.escape(base.name) + r"(?:\.(\d+))?\.nsys-rep")
    found = []
    for path in base.parent.iterdir() if base.parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and is_fresh(path, before):
            found.append((int(match[1] or 0), path))
    return [path for _, path in sorted(found)]


def unfinished_streams(folders: Iterable[Path]) -> list[Path]:
    """Return the ``.qdstrm`` files that no importer turned into a report."""
    return sorted(path for folder in folders if folder.is_dir() for path in folder.glob("*.qdstrm"))


def find_importer(executable: str) -> Path | None:
    """Return the importer of an installation (its host part); ``None`` when it is not there.

    NVIDIA has ``target-*`` and ``host-*`` side by side, Debian in ``lib/<machine>/nsight-systems`` and
    ``lib/nsight-systems``.
    """
    for folder in Path(executable).resolve().parents:
        for home in (folder, folder / "nsight-systems"):
            for importer in sorted(home.glob("host-*/QdstrmImporter")):
                return importer
    return None


def sqlite_of(report: Path) -> Path:
    """Return where the export of a report goes: beside it, ``run.nsys-rep`` → ``run.sqlite``."""
    return report.with_name(report.name.removesuffix(".nsys-rep") + ".sqlite")


def find_nsys_summary(run_dir: Path) -> Path | None:
    """Return the kernel summary of a run, also where earlier releases left it; ``None``: there is none.

    Absence is normal: Nsight Systems may be off, and a CPU trace has no kernels.
    """
    for folder in ("nsys", *_OLD_FOLDERS):
        for pattern in _KERNEL_SUMMARIES:
            for path in sorted(run_dir.glob(f"{folder}/{pattern}")):
                if path.is_file() and path.stat().st_size:
                    return path
    return None


def is_old_place(run_dir: Path, summary: Path) -> bool:
    """Tell whether a summary is neither in the run's ``nsys/`` nor in the directory itself, nor any export is."""
    current = (run_dir, run_dir / "nsys")
    return summary.parent not in current and not any(any(folder.glob("*.sqlite")) for folder in current)
