"""Which files a summary is made from: found in a run directory, or named by the user."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.ingest.static import find_static

HARDWARE_NAME = "hardware.json"
"""Limits of the device a run used, beside its captures."""


@dataclass(slots=True)
class Sources:
    """One file or folder per kind; ``None``: not there."""

    timings: Path | None = None
    """Wall-clock document."""
    static: Path | None = None
    """``static_compute.json``."""
    trace: Path | None = None
    """Torch profiler trace."""
    nsys: tuple[Path, ...] = ()
    """SQLite exports (one per captured range), or kernel-summary CSV files."""
    ncu: Path | None = None
    """Folder, CSV or ``.ncu-rep``."""

    def shown(self, root: Path | None = None) -> dict[str, str]:
        """Return kind → path, relative to ``root`` where it is below it."""

        def name(path: Path) -> str:
            return (
                str(path.relative_to(root)) if root is not None and path.is_relative_to(root) else str(path)
            )

        result: dict[str, str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, tuple):
                if value:
                    result[item.name] = ", ".join(name(path) for path in value)
            elif value is not None:
                result[item.name] = name(value)
        return result

    def require_existing(self) -> None:
        """Refuse paths that are not there, before any work."""
        for kind in ("timings", "static", "trace", "ncu"):
            path: Path | None = getattr(self, kind)
            if path is not None and not path.exists():
                raise InputError(f"--{kind} {path} does not exist", hint="check the path", path=str(path))
        for path in self.nsys:
            if not path.exists():
                raise InputError(f"--nsys {path} does not exist", hint="check the path", path=str(path))


def _first(*candidates: Path) -> Path | None:
    return next((path for path in candidates if path.is_file()), None)


def run_sources(run_dir: Path) -> Sources:
    """Find what the stages of a run left. A capture's own timings are not used: tools slow the run down."""
    nsys_dir, ncu_dir = run_dir / "nsys", run_dir / "ncu"
    sqlite = tuple(sorted(nsys_dir.glob("run*.sqlite"))) if nsys_dir.is_dir() else ()
    summary_csv = _first(nsys_dir / "summary.csv")
    return Sources(
        timings=_first(
            run_dir / "torch_profiler" / "timings.json", run_dir / "direct_inference" / "timings.json"
        ),
        static=find_static(run_dir),
        trace=_first(
            run_dir / "torch_profiler" / "trace.json.gz",
            run_dir / "torch_profiler" / "trace.json",
            run_dir / "torch_profiler" / "profile.json",  # operators only: the trace was not kept
        ),
        nsys=sqlite or ((summary_csv,) if summary_csv is not None else ()),
        ncu=ncu_dir if any(ncu_dir.rglob("*.ncu-rep")) or any(ncu_dir.rglob("*.csv")) else None,
    )
