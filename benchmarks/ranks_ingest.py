"""Captures of several ranks through the command line: does time grow by the rank, and memory by what is kept?

    python benchmarks/ranks_ingest.py --work /tmp/bench --kernels 1e6 --ranks 1,2,4,8
    python benchmarks/ranks_ingest.py --work /tmp/bench --kernels 1e5 --ranks 1,2,4,8 --form kineto
    python benchmarks/ranks_ingest.py --work /tmp/bench --kernels 5e3 --ranks 4,16,64 --form kineto

Every measurement is ``llm-perf-opt ingest`` of a folder, in a process of its own (start-up and reports included). The exit
code is 1 when a rank of the largest job costs more than 1.25 times a rank of the smallest one, or when memory grows by more
per rank than the first rank needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
MOST_GROWTH = 1.25
SUFFIX = {"nsys": "sqlite", "kineto": "json"}
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OPTION = {"nsys": "--nsys", "kineto": "--trace"}


def generate(work: Path, form: str, kernels: int, rank: int) -> Path:
    """Make the capture of one rank unless it is there."""
    out = work / f"{form}-{kernels}-rank{rank}.{SUFFIX[form]}"
    if not out.exists():
        unfinished = out.with_name(f"unfinished-{out.name}")
        if form == "nsys":
            command = [str(HERE.with_name("gen_nsys_sqlite.py")), "--seed", str(rank)]
        else:
            command = [str(HERE.with_name("gen_kineto.py")), "synth"]
        command += ["--kernels", str(kernels), "--out", str(unfinished)]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        if form == "kineto":
            make_rank(unfinished, rank)
        unfinished.rename(out)
    return out


def make_rank(trace: Path, rank: int) -> None:
    """Let a trace say which rank it is of, and let one kernel in twenty be a collective."""
    text = trace.read_text(encoding="utf-8")
    text = text.replace('"rank": 0, "world_size": 1', f'"rank": {rank}')
    trace.write_text(
        re.sub(r'"void at::native::reduce_kernel<512, 1, [^"]*MeanOps[^"]*"', f'"{ALL_REDUCE}"', text),
        encoding="utf-8",
    )


def measure(form: str, files: list[Path], work: Path) -> tuple[float, float, int]:
    """Return seconds, megabytes and the ranks the summary tells of."""
    folder, out = work / "ranks", work / "out"
    for one in (folder, out):
        shutil.rmtree(one, ignore_errors=True)
    folder.mkdir()
    for rank, file in enumerate(files):
        os.link(file, folder / f"rank{rank}.{SUFFIX[form]}")
    command = [sys.executable, "-m", "llm_perf_opt", "ingest", OPTION[form], str(folder), "--out", str(out)]
    with (work / "log.txt").open("ab") as log:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ingest ended with {child.returncode}; see {work / 'log.txt'}")
    summary = json.loads((out / "summary.json").read_text())
    return seconds, usage.ru_maxrss / 1024, len(summary.get("ranks") or [])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "ranks-ingest-bench")
    parser.add_argument("--kernels", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--form", choices=tuple(SUFFIX), default="nsys")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    counts = sorted(int(text) for text in options.ranks.split(","))
    files = [generate(options.work, options.form, options.kernels, rank) for rank in range(counts[-1])]
    print(
        f"{options.form}, {options.kernels:,} kernels per rank\n\n| ranks | s | s per rank | MB | ranks told |\n|---|---|---|---|---|"
    )
    rows = []
    for count in counts:
        seconds, megabytes, told = measure(options.form, files[:count], options.work)
        rows.append((count, seconds, megabytes))
        print(f"| {count} | {seconds:.2f} | {seconds / count:.2f} | {megabytes:.0f} | {told} |", flush=True)
    (few, first_s, first_mb), (many, last_s, last_mb) = rows[0], rows[-1]
    slower = (last_s / many) / (first_s / few)
    larger = (last_mb - first_mb) / max(1, many - few)
    print(f"\none rank of {many} takes {slower:.2f} × one of {few}; each further rank needs {larger:.0f} MB")
    return int(slower > MOST_GROWTH or larger > first_mb)


if __name__ == "__main__":
    sys.exit(main())
