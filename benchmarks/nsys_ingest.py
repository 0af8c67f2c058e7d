"""Reading nsys exports against peers, in one run, on files whose answers are known.

    python benchmarks/nsys_ingest.py --work /tmp/bench --kernels 1e6,5e6 \\
        --nsys /usr/bin/nsys --nsys-ai /tmp/peer/bin/nsys-ai

Every subject is a process of its own (start-up included), timed from outside; the best of ``--rounds`` counts.
Peers are optional: what is not given is left out and said. nsys-ai needs its DuckDB extension, which is a package too:
``pip install nsys-ai duckdb==V duckdb-extensions==V duckdb-extension-sqlite-scanner==V`` (one version V), and once
``python -c 'import duckdb_extensions as d; d.import_extension("sqlite_scanner")'``. Our answers are compared with the generator's.
The exit code is 1 when an answer is wrong or a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject on one file."""

    seconds: float
    megabytes: float
    cpu_seconds: float
    """User and system time: comparable also when the machine is busy."""


# --- subjects: run in a process of their own -------------------------------------------------------------------


def subject_scan(source: Path, _: Path) -> None:
    """The least any tool must do for "top kernels": visit every row."""
    database = sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True)
    database.execute("SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()


def subject_top(source: Path, out: Path) -> None:
    from llm_perf_opt.ingest.nsys_sqlite import read_kernel_totals

    rows = read_kernel_totals(source).kernels
    out.write_text(json.dumps({row.name: [row.count, row.total_ns] for row in rows}))


def subject_attribution(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.attribution import attribute, by_range_and_name
    from llm_perf_opt.ingest.nsys_sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(source)
    table = by_range_and_name(timeline, attribute(timeline))
    out.write_text(
        json.dumps({f"{label}\t{name}": [one.launches, one.total_ns] for (label, name), one in table.items()})
    )


def subject_second_look(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.attribution import attribute, by_range_and_name
    from llm_perf_opt.ingest.nsys import read_nsys
    from llm_perf_opt.ingest.timeline import Timeline

    timeline = read_nsys(source, cache_dir=out.parent / "cache")
    if not isinstance(timeline, Timeline):
        raise SystemExit("not a timeline")
    table = by_range_and_name(timeline, attribute(timeline))
    out.write_text(
        json.dumps({f"{label}\t{name}": [one.launches, one.total_ns] for (label, name), one in table.items()})
    )


def subject_full(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.timeline_summary import summarise_timeline
    from llm_perf_opt.ingest.nsys_sqlite import read_nsys_sqlite

    facts = summarise_timeline(read_nsys_sqlite(source))
    out.write_text(json.dumps({phase: budget.span_s for phase, budget in facts.budget.items()}))


SUBJECTS: dict[str, Callable[[Path, Path], None]] = {
    "scan": subject_scan,
    "top": subject_top,
    "attribution": subject_attribution,
    "second_look": subject_second_look,
    "full": subject_full,
}


# --- measuring -------------------------------------------------------------------------------------------------


def run(command: list[str], log: Path) -> Measured:
    """Run a command; return wall-clock and the largest resident size among it and its children."""
    with log.open("ab") as stream:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}; see {log}")
    return Measured(seconds, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)


def best(rounds: int, once: Callable[[], Measured]) -> Measured:
    return min((once() for _ in range(rounds)), key=lambda one: one.seconds)


def _touch(path: Path) -> None:
    """Bring a file into the page cache, a piece at a time: children inherit our peak size."""
    with path.open("rb") as stream:
        while stream.read(1 << 20):
            pass


class Bench:
    """All subjects on one generated file."""

    def __init__(self, work: Path, kernels: int, options: argparse.Namespace) -> None:
        self.folder = work / f"{kernels}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self.folder / "trace.sqlite"
        self.log = self.folder / "log.txt"
        self.rounds = options.rounds
        self.nsys, self.nsys_ai = options.nsys, options.nsys_ai
        if not self.source.exists():
            generator = [sys.executable, str(HERE.with_name("gen_nsys_sqlite.py"))]
            subprocess.run([*generator, "--kernels", str(kernels), "--out", str(self.source)], check=True)
        self.truth = json.loads(self.source.with_name("trace.sqlite.truth.json").read_text())
        _touch(self.source)
        self.problems: list[str] = []

    def ours(self, name: str, expected: str | None = None) -> Measured:
        out = self.folder / f"{name}.json"
        before = (self.source.stat().st_mtime_ns, self.source.stat().st_size, sorted(os.listdir(self.folder)))  # noqa: PTH208
        command = [sys.executable, str(HERE), "--subject", name, str(self.source), str(out)]
        measured = best(self.rounds, lambda: run(command, self.log))
        if expected is not None and json.loads(out.read_text()) != self.truth[expected]:
            self.problems.append(f"{name}: the answer differs from the generator's")
        out.unlink(missing_ok=True)
        state = self.source.stat()
        if (state.st_mtime_ns, state.st_size) != before[:2]:
            self.problems.append(f"{name}: the input was modified")
        return measured

    def nsys_stats(self, *reports: str) -> Measured | None:
        """The first of the report names that the installed nsys knows (2022 and 2023 renamed them)."""
        for report in reports if self.nsys else ():
            measured = self._stats_once(report)
            if measured is not None:
                again = [self._stats_once(report) for _ in range(self.rounds - 1)]
                return min((measured, *(one for one in again if one)), key=lambda one: one.seconds)
        return None

    def _stats_once(self, report: str) -> Measured | None:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            base = Path(folder) / "out"
            measured = run(
                [self.nsys, "stats", "-r", report, "-f", "csv", "-o", str(base), str(self.source)], self.log
            )
            return measured if any(one.stat().st_size for one in Path(folder).glob("out*.csv")) else None

    def nsys_ai_cold_and_warm(self) -> tuple[Measured, Measured] | None:
        """In a copy of its own, because it writes its cache beside the input.

        It downloads a DuckDB extension at first use. Where that fails it waits for the network and goes on without
        its cache, which would flatter us: then there is no comparison.
        """
        if not self.nsys_ai:
            return None
        cold: list[Measured] = []
        warm: list[Measured] = []
        for _ in range(self.rounds):
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                copy = Path(folder) / "trace.sqlite"
                shutil.copyfile(self.source, copy)
                command = [
                    self.nsys_ai,
                    "skill",
                    "run",
                    "nvtx_layer_breakdown",
                    str(copy),
                    "--format",
                    "json",
                ]
                log = Path(folder) / "log.txt"
                cold.append(run(command, log))
                if "DuckDB unavailable" in log.read_text(errors="replace"):
                    print(
                        "(nsys-ai lacks its DuckDB extension: pip install duckdb-extension-sqlite-scanner, and a"
                    )
                    print(" duckdb of the same version; see --help)")
                    return None
                warm.append(best(2, lambda command=command, log=log: run(command, log)))  # type: ignore[misc]
        return min(cold, key=lambda one: one.seconds), min(warm, key=lambda one: one.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "nsys-ingest-bench")
    parser.add_argument("--kernels", default="1e6,5e6", help="sizes, comma separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="Nsight Systems to compare with")
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="nsys-ai to compare with")
    parser.add_argument("--peers-up-to", type=float, default=1e6, help="larger files: ours only")
    parser.add_argument("--subject", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        SUBJECTS[options.subject](*options.paths)
        return 0
    failed: list[str] = []
    per_kernel: list[float] = []
    for kernels in (int(float(size)) for size in options.kernels.split(",")):
        failed += report(
            Bench(options.work, kernels, options), kernels, kernels <= options.peers_up_to, per_kernel
        )
    if len(per_kernel) > 1:
        growth = per_kernel[-1] / per_kernel[0]
        print(f"\ntime per kernel, largest ÷ smallest file: {growth:.2f}")
        failed += [f"not linear: {growth:.2f}× per kernel"] if growth > 1.3 else []
    for problem in failed:
        print(f"MISSED: {problem}")
    return 1 if failed else 0


def report(bench: Bench, kernels: int, with_peers: bool, per_kernel: list[float]) -> list[str]:
    """Measure and print one table; return what went wrong."""
    rows: list[tuple[str, Measured | None]] = []
    scan, top = bench.ours("scan"), bench.ours("top", "by_name")
    attribution = bench.ours("attribution", "by_range_kernel")
    shutil.rmtree(bench.folder / "cache", ignore_errors=True)
    bench.ours("second_look", "by_range_kernel")  # fills the cache
    again = bench.ours("second_look", "by_range_kernel")
    rows += [("scan of the kernel table (sqlite3)", scan), ("ours: top kernels", top)]
    rows += [("ours: attribution", attribution), ("ours: second look", again)]
    rows += [("ours: attribution, budgets, gaps, drawing", bench.ours("full"))]
    per_kernel.append(attribution.seconds / kernels)
    failed = [*bench.problems]
    failed += (
        [f"top kernels {top.seconds / scan.seconds:.1f}× a scan (3×)"]
        if top.seconds > 3 * scan.seconds
        else []
    )
    limit = 500 if kernels <= 1e6 else 1500
    failed += [f"{attribution.megabytes:.0f} MB (limit {limit})"] if attribution.megabytes > limit else []
    if with_peers:
        stats = bench.nsys_stats("nvtx_kern_sum", "nvtxkernsum")
        both = bench.nsys_ai_cold_and_warm()
        cold, warm = both if both else (None, None)
        rows += [("nsys stats: top kernels", bench.nsys_stats("cuda_gpu_kern_sum", "gpukernsum"))]
        rows += [
            ("nsys stats: attribution", stats),
            ("nsys-ai: attribution, cold", cold),
            ("nsys-ai: second look", warm),
        ]
        for label, peer, mine, factor in (
            ("nsys stats", stats, attribution, 10.0),
            ("nsys-ai cold", cold, attribution, 5.0),
            ("nsys-ai second look", warm, again, 1.0),
        ):
            if peer is None:
                print(f"(not compared with {label}: not there, or not able)")
            elif peer.seconds < factor * mine.seconds:
                failed.append(f"{peer.seconds / mine.seconds:.1f}× faster than {label} (target {factor:g}×)")
    print(f"\n{kernels:,} kernels, {bench.source.stat().st_size / 1e6:.0f} MB\n")
    print("| what | s | × ours | CPU s | × ours | MB RSS |\n|---|---|---|---|---|---|")
    for label, measured in rows:
        if measured is not None:
            reference = (
                again if "second look" in label else top if "top" in label or "scan" in label else attribution
            )
            ratio, cpu = measured.seconds / reference.seconds, measured.cpu_seconds / reference.cpu_seconds
            print(
                f"| {label} | {measured.seconds:.2f} | {ratio:.2f} | {measured.cpu_seconds:.2f} | {cpu:.2f} "
                f"| {measured.megabytes:.0f} |"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
