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
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()

SCAN, TOP, ATTRIBUTION = "scan of the kernel table (sqlite3)", "ours: top kernels", "ours: attribution"
AGAIN, FULL = "ours: second look", "ours: attribution, budgets, gaps, drawing"
STATS, STATS_TOP = "nsys stats: attribution", "nsys stats: top kernels"
TYPED = "ours: the typed command, cold"
AI_COLD, AI_WARM = "nsys-ai: attribution, cold", "nsys-ai: second look"
OURS_OF = {
    SCAN: TOP, TOP: TOP, STATS_TOP: TOP, ATTRIBUTION: ATTRIBUTION, FULL: ATTRIBUTION, STATS: ATTRIBUTION,
    AI_COLD: ATTRIBUTION, AGAIN: AGAIN, AI_WARM: AGAIN, TYPED: ATTRIBUTION,
}  # fmt: skip
TARGETS = {
    ATTRIBUTION: {STATS: 15.0, AI_COLD: 10.0},
    FULL: {STATS: 10.0, AI_COLD: 7.0},
    TYPED: {STATS: 7.0, AI_COLD: 5.0},
    AGAIN: {AI_WARM: 1.0},
}
"""How many times longer than ours each peer has to take."""
TARGETS_FROM = 1_000_000
"""Targets are for files of this many kernels; below, starting Python is most of the time."""


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
    from llm_perf_opt.captures.nsys.sqlite import read_kernel_totals

    rows = read_kernel_totals(source).kernels
    out.write_text(json.dumps({row.name: [row.count, row.total_ns] for row in rows}))


def subject_attribution(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.timeline.attribution import attribute, by_range_and_name
    from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(source)
    table = by_range_and_name(timeline, attribute(timeline))
    out.write_text(
        json.dumps({f"{label}\t{name}": [one.launches, one.total_ns] for (label, name), one in table.items()})
    )


def subject_second_look(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.timeline.attribution import attribute, by_range_and_name
    from llm_perf_opt.captures.nsys.reader import read_nsys
    from llm_perf_opt.captures.timeline import Timeline

    timeline = read_nsys(source, cache_dir=out.parent / "cache")
    if not isinstance(timeline, Timeline):
        raise SystemExit("not a timeline")
    table = by_range_and_name(timeline, attribute(timeline))
    out.write_text(
        json.dumps({f"{label}\t{name}": [one.launches, one.total_ns] for (label, name), one in table.items()})
    )


def subject_full(source: Path, out: Path) -> None:
    from llm_perf_opt.analysis.timeline.summary import summarise_timeline
    from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite

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


def run(
    command: list[str], log: Path, *, output: Path | None = None, env: dict[str, str] | None = None
) -> Measured:
    """Run a command; return wall-clock and the largest resident size among it and its children."""
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(log.open("ab"))
        printed = stack.enter_context(output.open("wb")) if output is not None else stream
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=stream, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}; see {log}")
    return Measured(seconds, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)


def _touch(path: Path) -> None:
    """Bring a file into the page cache, a piece at a time: children inherit our peak size."""
    with path.open("rb") as stream:
        while stream.read(1 << 20):
            pass


def _attributes_kernels(answer: Path, truth: dict[str, Any]) -> bool:
    """Whether what nsys-ai printed agrees with the generator's answers.

    It prints the layers with most time only, by phase: none may have more launches than the generator put into that layer,
    and together they must hold a quarter of all.
    """
    text = answer.read_text(errors="replace")
    begin = min((at for mark in "[{" if (at := text.find(mark)) >= 0), default=-1)
    if begin < 0:
        return False
    try:
        found, _ = json.JSONDecoder().raw_decode(text[begin:])
    except ValueError:
        return False
    rows = (
        found
        if isinstance(found, list)
        else next((one for one in found.values() if isinstance(one, list)), [])
    )
    launches: dict[str, int] = {}
    for key, (count, _) in truth["by_range_kernel"].items():
        label = key.split("\t")[0]
        launches[label] = launches.get(label, 0) + count
    layers = [(str(row.get("nvtx_path")), row.get("kernel_count")) for row in rows if isinstance(row, dict)]
    counted = [(path.rsplit(" > ", 1)[-1], count) for path, count in layers if isinstance(count, int)]
    return (
        all(count <= launches.get(label, 0) for label, count in counted)
        and 4 * sum(count for _, count in counted) >= truth["kernels"]
    )


class Bench:
    """All subjects on one generated file."""

    def __init__(self, work: Path, kernels: int, options: argparse.Namespace) -> None:
        self.folder = work / f"{kernels}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self.folder / "trace.sqlite"
        self.log = self.folder / "log.txt"
        self.nsys, self.nsys_ai = options.nsys, options.nsys_ai
        if not self.source.exists():
            generator = [sys.executable, str(HERE.with_name("gen_nsys_sqlite.py"))]
            subprocess.run([*generator, "--kernels", str(kernels), "--out", str(self.source)], check=True)
        self.truth = json.loads(self.source.with_name("trace.sqlite.truth.json").read_text())
        _touch(self.source)
        # Ours runs from bytecode like the peers, which were installed: compiling the sources takes a fifth of a short command.
        self.env = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "PYTHONPATH": str(HERE.parent.parent / "src"),
        }
        self.problems: list[str] = []

    def ours(self, name: str, expected: str | None = None) -> Measured:
        """One run of a subject of ours, its answer compared with the generator's."""
        out = self.folder / f"{name}.json"
        before = self.source.stat()
        command = [sys.executable, str(HERE), "--subject", name, str(self.source), str(out)]
        measured = run(command, self.log, env=self.env)
        if expected is not None and json.loads(out.read_text()) != self.truth[expected]:
            self.problems.append(f"{name}: the answer differs from the generator's")
        out.unlink(missing_ok=True)
        after = self.source.stat()
        if (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size):
            self.problems.append(f"{name}: the input was modified")
        return measured

    def nsys_stats(self, *reports: str) -> Measured | None:
        """The first of the report names that the installed nsys knows (2022 and 2023 renamed them)."""
        for report in reports if self.nsys else ():
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                base = Path(folder) / "out"
                command = [self.nsys, "stats", "-r", report, "-f", "csv", "-o", str(base), str(self.source)]
                measured = run(command, self.log)
                if any(one.stat().st_size for one in Path(folder).glob("out*.csv")):
                    return measured
        return None

    def nsys_ai_cold_and_warm(self) -> tuple[Measured | None, Measured | None]:
        """In a copy of its own, because it writes its cache beside the input.

        It downloads a DuckDB extension at first use. Where that fails it waits for the network and goes on without
        its cache, which would flatter us: then there is no comparison. A cold look has no cache of any kind: a copy with a name
        that was never seen, and a cache directory of its own. Its answer is compared with the generator's: a skill that finds
        nothing ends within a second and with exit code 0.
        """
        if not self.nsys_ai:
            return None, None
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            copy, log, answer = (
                Path(folder) / name for name in (f"trace-{uuid.uuid4().hex}.sqlite", "log.txt", "out.json")
            )
            shutil.copyfile(self.source, copy)
            _touch(copy)
            env = {**os.environ, "XDG_CACHE_HOME": str(Path(folder) / "cache")}
            command = [self.nsys_ai, "skill", "run", "nvtx_layer_breakdown", str(copy), "--format", "json"]
            cold = run(command, log, output=answer, env=env)
            if "DuckDB unavailable" in log.read_text(errors="replace"):
                print("(nsys-ai lacks its DuckDB extension; --help says how to install it)")
                self.nsys_ai = None
                return None, None
            if not _attributes_kernels(answer, self.truth):
                print(
                    "(nsys-ai did not attribute this file's kernels to their layers, so it is not compared)"
                )
                self.nsys_ai = None
                return None, None
            return cold, run(command, log, output=answer, env=env)

    def typed_command(self) -> Measured:
        """``ingest --nsys`` as a user types it: summary and reports, with a cache that is empty."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            env = {**self.env, "XDG_CACHE_HOME": str(Path(folder) / "cache")}
            out = Path(folder) / "out"
            command = [
                sys.executable,
                "-m",
                "llm_perf_opt",
                "ingest",
                "--nsys",
                str(self.source),
                "--out",
                str(out),
            ]
            measured = run(command, self.log, env=env)
            if not (out / "summary.json").is_file():
                self.problems.append("the typed command wrote no summary")
            return measured

    def rounds_of(self, rounds: int, with_peers: bool) -> dict[str, Measured]:
        """The best of every subject. Subjects take turns, so that a load that drifts meets all of them."""
        found: dict[str, list[Measured | None]] = {}
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        self.ours("second_look", "by_range_kernel")  # fills the cache
        for name in ("scan", "top", "attribution", "full"):  # and these and the next the bytecode
            self.ours(name)
        self.typed_command()
        for _ in range(rounds):
            turn: dict[str, Measured | None] = {
                SCAN: self.ours("scan"),
                TOP: self.ours("top", "by_name"),
                ATTRIBUTION: self.ours("attribution", "by_range_kernel"),
            }
            if with_peers:
                turn[STATS] = self.nsys_stats("nvtx_kern_sum", "nvtxkernsum")
                turn[STATS_TOP] = self.nsys_stats("cuda_gpu_kern_sum", "gpukernsum")
                turn[AI_COLD], turn[AI_WARM] = self.nsys_ai_cold_and_warm()
            turn[AGAIN] = self.ours("second_look", "by_range_kernel")
            turn[FULL] = self.ours("full")
            turn[TYPED] = self.typed_command()
            for label, measured in turn.items():
                found.setdefault(label, []).append(measured)
        best = {label: [one for one in all_of_it if one] for label, all_of_it in found.items()}
        return {label: min(some, key=lambda one: one.seconds) for label, some in best.items() if some}


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
        bench = Bench(options.work, kernels, options)
        problems, each = report(bench, kernels, options.rounds, kernels <= options.peers_up_to)
        failed += problems
        per_kernel.append(each)
    if len(per_kernel) > 1:
        growth = per_kernel[-1] / per_kernel[0]
        print(f"\ntime per kernel, largest ÷ smallest file: {growth:.2f}")
        failed += [f"not linear: {growth:.2f}× per kernel"] if growth > 1.3 else []
    for problem in failed:
        print(f"MISSED: {problem}")
    return 1 if failed else 0


def report(bench: Bench, kernels: int, rounds: int, with_peers: bool) -> tuple[list[str], float]:
    """Measure and print one table; return what went wrong, and our time per kernel."""
    found = bench.rounds_of(rounds, with_peers)
    print(f"\n{kernels:,} kernels, {bench.source.stat().st_size / 1e6:.0f} MB\n")
    print("| what | s | × ours | CPU s | × ours | MB RSS |\n|---|---|---|---|---|---|")
    for label, one in found.items():
        mine = found[OURS_OF[label]]
        ratios = one.seconds / mine.seconds, one.cpu_seconds / mine.cpu_seconds
        print(
            f"| {label} | {one.seconds:.2f} | {ratios[0]:.2f} | {one.cpu_seconds:.2f} | {ratios[1]:.2f} | {one.megabytes:.0f} |"
        )
    failed = [*bench.problems]
    if kernels < TARGETS_FROM:
        return failed, found[ATTRIBUTION].seconds / kernels
    limit = 500 if kernels <= 1e6 else 1500
    if found[ATTRIBUTION].megabytes > limit:
        failed.append(f"{found[ATTRIBUTION].megabytes:.0f} MB (limit {limit})")
    if found[TOP].seconds > 3 * found[SCAN].seconds:
        failed.append(f"top kernels take {found[TOP].seconds / found[SCAN].seconds:.1f}× a scan (limit 3×)")
    wanted = [(mine, peer, factor) for mine, peers in TARGETS.items() for peer, factor in peers.items()]
    for mine, peer, factor in wanted if with_peers else ():
        if peer not in found:
            print(f"(not compared: {peer})")
            continue
        ratio = found[peer].seconds / found[mine].seconds
        print(f"{mine}: {ratio:.2f} × faster than {peer} (target {factor:g})")
        failed += [f"{mine}: {ratio:.2f} × faster than {peer} (target {factor:g})"] if ratio < factor else []
    return failed, found[ATTRIBUTION].seconds / kernels


if __name__ == "__main__":
    sys.exit(main())
