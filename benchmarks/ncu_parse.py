"""Reading 1,000 kernels × 300 metrics of Nsight Compute: ours, with every unit resolved, against pandas.

    python benchmarks/ncu_parse.py --pandas-python /path/to/venv/bin/python

pandas reads the same file with ``read_csv`` and resolves nothing. Both run in this one run, alternating, in
fresh processes; the import is not counted. The limit is a ratio of 1.5.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 1.5
LEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
LEAD += ["Grid Size", "Device", "CC"]
UNITS = ["Mbyte", "us", "%", "", "Ghz", "Gbyte/s", "inst", "cycle", "byte"]

OURS = """
import json, sys, time
from pathlib import Path
import polars  # loaded when a file is large; pandas' own import is not counted either
from llm_perf_opt.captures.ncu.csv import read_ncu_csv
start = time.perf_counter()
capture = read_ncu_csv(Path(sys.argv[1]))
seconds = time.perf_counter() - start
total = sum(len(launch.metrics) for launch in capture.launches)
probe = capture.launches[-1].metrics["unit0__metric_0.sum"]
print(json.dumps({"seconds": seconds, "launches": len(capture.launches), "metrics": total, "value": probe.value}))
"""
PANDAS = """
import json, sys, time
import pandas
start = time.perf_counter()
frame = pandas.read_csv(sys.argv[1], low_memory=False)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "rows": len(frame)}))
"""


def kernel_name(number: int) -> str:
    return f"void at::native::elementwise_kernel<128, {number % 7}, Functor_{number}<float>>(int, T3)"


def value(generator: random.Random, column: int) -> str:
    if column % 9 == 3:
        return f"{generator.randrange(10**9):,}"
    if column % 29 == 5:
        return "n/a"
    return f"{generator.uniform(0, 2000):,.2f}"


def write_raw(path: Path, kernels: int, metrics: int) -> None:
    generator = random.Random(0)
    names = [f"unit{number % 9}__metric_{number}.sum" for number in range(metrics)]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow([*LEAD, *names])
        writer.writerow([*[""] * len(LEAD), *(UNITS[number % 9] for number in range(metrics))])
        for number in range(kernels):
            cells = [value(generator, column) for column in range(metrics)]
            writer.writerow([*lead(number), *cells])


def write_details(path: Path, kernels: int, metrics: int) -> None:
    generator = random.Random(0)
    header = [*LEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type"]
    header += ["Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(header)
        for number in range(kernels):
            first = lead(number)
            for column in range(metrics):
                name = f"unit{column % 9}__metric_{column}.sum"
                cell = value(generator, column)
                writer.writerow([*first, f"Section {column % 12}", name, UNITS[column % 9], cell, ""])
            writer.writerow(
                [*first, "SpeedOfLight", "", "", "", "Rule", "OPT", "text " * 40, "global", "12.5"]
            )


def lead(number: int) -> list[str]:
    shapes = ["(128, 1, 1)", "(152, 4, 1)"]
    return [str(number), "11", "python", "127.0.0.1", kernel_name(number), "1", "7", *shapes, "0", "12.0"]


def best(python: str, code: str, path: Path) -> dict[str, float]:
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pandas-python", default=sys.executable, help="interpreter that has pandas")
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--metrics", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for page, write in (("raw", write_raw), ("details", write_details)):
            path = Path(folder) / f"{page}.csv"
            write(path, options.kernels, options.metrics)
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(best(sys.executable, OURS, path))
                theirs.append(best(options.pandas_python, PANDAS, path))
            assert ours[0]["metrics"] == options.kernels * options.metrics, ours[0]
            mine, other = min(each["seconds"] for each in ours), min(each["seconds"] for each in theirs)
            ratio = mine / other
            failed |= ratio > LIMIT
            size = path.stat().st_size / 1e6
            print(f"{page:8} {size:7.1f} MB   ours {mine:.3f} s   pandas {other:.3f} s   ratio {ratio:.2f}")
    print("limit 1.5:", "exceeded" if failed else "kept")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
