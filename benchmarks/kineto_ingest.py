"""Reading torch traces against HolisticTraceAnalysis, in one run, on files whose answers are known.

    python benchmarks/kineto_ingest.py --work /tmp/bench --kernels 1e5,1e6
    python benchmarks/kineto_ingest.py --work /tmp/bench --kernels 1e6 --peer-python /tmp/hta/bin/python

Every subject is a process of its own (start-up included), timed from outside; the best of ``--rounds`` counts
(the peer runs once: it takes minutes). The peer lives in a virtual environment of its own, made below ``--work``
unless given; where it cannot be installed it is left out and said. Our answers (kernels by phase and name) must
equal the generator's to the nanosecond. The exit code is 1 when an answer is wrong or a target is missed at a million kernels:
25 times faster than the peer with a fifteenth of its memory, and 1.6 times the bare decoding of the file. Memory is the largest
resident size of the process plus that of the largest process it started.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve()
TARGET_SPEED, TARGET_MEMORY, TARGET_DECODE, TARGET_KERNELS = 25.0, 15.0, 1.6, 1_000_000
PEER_PACKAGES = ("HolisticTraceAnalysis", "pandas<3")
VARIANTS: dict[str, list[str]] = {
    "torch": [],
    "gz": [],
    "old": ["--layout", "old"],
    "compact": ["--layout", "compact"],
    "graphs": ["--graph-decode", "--layer-ranges"],
    "stacks": ["--python-per-kernel", "6"],
}

PEER_PROGRAM = """
import sys, os, tempfile
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    os.symlink(sys.argv[1], os.path.join(folder, "rank0.json"))
    analysis = TraceAnalysis(trace_files={0: os.path.join(folder, "rank0.json")}, trace_dir=folder)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000)
    print(len(kernels), "kernels", kernels["sum (us)"].sum(), "us")
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject on one file."""

    seconds: float
    megabytes: float


def subject_parse(source: Path, _: Path) -> None:
    """The least a streaming reader must do: decode every event."""
    from llm_perf_opt.captures.kineto.stream import EventStream

    for events in EventStream(source):
        events.clear()


def subject_kernels(source: Path, out: Path) -> None:
    """Kernels, operators and phases: what a report needs."""
    from llm_perf_opt.analysis.operators.table import operator_records
    from llm_perf_opt.analysis.timeline.attribution import attribute, by_path_and_name
    from llm_perf_opt.captures.kineto.reader import read_kineto

    capture = read_kineto(source)
    attribution = attribute(capture.timeline)
    table: dict[str, list[int]] = {}
    for (path, name), one in by_path_and_name(capture.timeline, attribution).items():
        phase = attribution.phases[attribution.path_phase[path]]
        row = table.setdefault(f"{phase}\t{capture.timeline.names[name]}", [0, 0])
        row[0] += one.launches
        row[1] += one.total_ns
    records = operator_records(capture.operators, capture.timeline, attribution)
    device_ns = sum(round((record.self_device_s or 0.0) * 1e9) for record in records)
    helpers_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    answer = {
        "by_phase_name": table,
        "operators": len(records),
        "device_ns": device_ns,
        "helpers_mb": helpers_mb,
    }
    out.write_text(json.dumps(answer))


SUBJECTS: dict[str, Callable[[Path, Path], None]] = {"parse": subject_parse, "kernels": subject_kernels}


def run(command: list[str], log: Path) -> Measured:
    """Run a command; return wall-clock and its largest resident size."""
    with log.open("ab") as stream:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command[:4])} … ended with {child.returncode}; see {log}")
    return Measured(seconds, usage.ru_maxrss / 1024)


def generate(work: Path, kernels: int, variant: str) -> Path:
    """Make the file unless it is there."""
    source = work / f"{variant}-{kernels}.json{'.gz' if variant == 'gz' else ''}"
    if not source.with_name(source.name + ".truth.json").exists():
        command = [sys.executable, str(HERE.with_name("gen_kineto.py")), "synth", "--kernels", str(kernels)]
        subprocess.run(
            [*command, *VARIANTS[variant], "--out", str(source)], check=True, stdout=subprocess.DEVNULL
        )
    with source.open("rb") as stream:  # into the page cache: everybody reads a warm file
        while stream.read(1 << 24):
            pass
    return source


def ours(source: Path, subject: str, work: Path, rounds: int) -> tuple[Measured, list[str]]:
    out = work / "answer.json"
    command = [sys.executable, str(HERE), "--subject", subject, str(source), str(out)]
    measured = min((run(command, work / "log.txt") for _ in range(rounds)), key=lambda one: one.seconds)
    if subject != "kernels":
        return measured, []
    answer = json.loads(out.read_text())
    measured = replace(measured, megabytes=measured.megabytes + answer["helpers_mb"])
    truth = json.loads(source.with_name(source.name + ".truth.json").read_text())
    wrong = answer["by_phase_name"] != truth["by_phase_name"]
    return measured, [f"{source.name}: the answer differs from the generator's"] if wrong else []


def peer_python(given: Path | None, work: Path) -> Path | None:
    """Return an interpreter that has the peer, or ``None``."""
    if given is not None:
        return given
    folder = work / "hta-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", *PEER_PACKAGES], check=False)
        if done.returncode:
            print("HolisticTraceAnalysis cannot be installed here: left out")
            return None
    return python


def show(label: str, one: Measured, than: Measured | None = None) -> None:
    ratio = (
        f"   {than.seconds / one.seconds:6.1f}× faster, 1/{than.megabytes / one.megabytes:.1f} of the memory"
        if than
        else ""
    )
    print(f"  {label:<46} {one.seconds:8.2f} s {one.megabytes:8.0f} MB{ratio}", flush=True)


def compare(kernels: int, options: argparse.Namespace, python: Path | None) -> list[str]:
    """Measure one size; return what went wrong."""
    source = generate(options.work, kernels, "torch")
    print(f"\n{kernels} kernels, {source.stat().st_size / 1e6:.0f} MB of JSON")
    parsed, _ = ours(source, "parse", options.work, options.rounds)
    show("decode every event", parsed)
    mine, problems = ours(source, "kernels", options.work, options.rounds)
    peer = None
    if python is not None:
        peer = run([str(python), "-c", PEER_PROGRAM, str(source)], options.work / "log.txt")
        show("HolisticTraceAnalysis: kernel breakdown", peer)
    show("ours: kernels, phases, operators, attribution", mine, peer)
    over_decoding = mine.seconds / parsed.seconds
    print(f"  {over_decoding:.2f} × the bare decoding")
    if kernels >= TARGET_KERNELS and over_decoding > TARGET_DECODE:
        problems.append(f"{over_decoding:.2f} × the bare decoding, wanted {TARGET_DECODE}")
    if peer is not None and kernels >= TARGET_KERNELS:
        if peer.seconds / mine.seconds < TARGET_SPEED:
            problems.append(f"{peer.seconds / mine.seconds:.1f}× faster, wanted {TARGET_SPEED:.0f}×")
        if peer.megabytes / mine.megabytes < TARGET_MEMORY:
            problems.append(
                f"1/{peer.megabytes / mine.megabytes:.1f} of the memory, wanted 1/{TARGET_MEMORY:.0f}"
            )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "kineto-ingest-bench")
    parser.add_argument("--kernels", default="1e5,1e6", help="sizes, comma separated")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--peer-python", type=Path, help="an interpreter with HolisticTraceAnalysis and pandas<3"
    )
    parser.add_argument("--no-peer", action="store_true", help="ours only")
    parser.add_argument(
        "--variants", type=float, default=1e5, help="kernels of the other layouts; 0: leave them out"
    )
    parser.add_argument("--subject", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        SUBJECTS[options.subject](*options.paths)
        return 0
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    python = None if options.no_peer else peer_python(options.peer_python, options.work)
    failed: list[str] = []
    for kernels in (int(float(size)) for size in options.kernels.split(",")):
        failed += compare(kernels, options, python)
    if options.variants:
        print(f"\nother forms, {int(options.variants)} kernels: ours")
        for variant in VARIANTS:
            source = generate(options.work, int(options.variants), variant)
            measured, problems = ours(source, "kernels", options.work, 1)
            show(f"{variant} ({source.stat().st_size / 1e6:.0f} MB)", measured)
            failed += problems
    for problem in failed:
        print(f"MISSED: {problem}")
    print(
        "all answers equal the generator's"
        if not any("differs" in one for one in failed)
        else "WRONG ANSWERS"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
