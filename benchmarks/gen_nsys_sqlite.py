"""Deterministic writer of Nsight Systems SQLite exports (LLM inference), stdlib only.

Like a real export: no indexes, integer ns, rows only roughly in order (``--disorder``). ``nsys stats`` (2022.4 and
later) and nsys-ai read the result. Writes OUT and OUT.truth.json: exact integer answers by kernel, by (range, kernel)
for every enclosing range on the launching thread, and by innermost range; so the file is a performance and a
correctness fixture.

  gen_nsys_sqlite.py --kernels 1e5 --out n1e5.sqlite
  gen_nsys_sqlite.py --kernels 1e5 --graph-decode --registered --disorder 64 --out n.sqlite
  gen_nsys_sqlite.py --kernels 1e5 --op-ranges 4 --schema 2026.2 --out dense.sqlite   (as torch emit_nvtx)
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

from nsys_export_schema import LAYER, SUB, tables

VM = 1 << 48
PID, TID, TID2 = 8403, 8403, 8410
GPID = VM | PID << 24
GTID, GTID2 = GPID | TID, GPID | TID2
PUSHPOP, DOMAIN_CREATE = 59, 75
FIRST_NS = 1_200_000_000
KERNEL, RUNTIME, MEMCPY, SYNC, NVTX = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
VERSIONS = {
    "2022.4": ("2022.4.2.1", "3.0.0"),
    "2024.2": ("2024.2.1.0", "3.11.1"),
    "2026.2": ("2026.2.1.0", "3.25.0"),
}


class Strings(dict[str, int]):
    """String → id, in order of first use."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


class Tables:
    """The database: rows are buffered, put out of order when asked to, and inserted in blocks."""

    def __init__(self, options: argparse.Namespace) -> None:
        Path(options.out).unlink(missing_ok=True)
        self.disorder = options.disorder
        self.database = sqlite3.connect(options.out, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=OFF")
        self.database.execute("PRAGMA synchronous=OFF")
        self.columns = tables(options.schema)
        for table, columns in self.columns.items():
            listed = ", ".join(
                f'"{name}" {kind}' if name == "end" else f"{name} {kind}" for name, kind in columns
            )
            self.database.execute(f"CREATE TABLE {table} ({listed})")
        self.rows: dict[str, list[tuple[Any, ...]]] = {
            name: [] for name in (KERNEL, RUNTIME, MEMCPY, SYNC, NVTX)
        }
        self.database.execute("BEGIN")

    def insert(self, table: str, rows: Any) -> None:
        marks = ",".join("?" * len(self.columns[table]))
        self.database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def flush(self, force: bool = False) -> None:
        for name, rows in self.rows.items():
            if not force and len(rows) <= 50000:
                continue
            if self.disorder:  # as real exports: only roughly in time order
                for j in range(0, len(rows) - self.disorder, self.disorder):
                    rows[j : j + self.disorder] = rows[j + self.disorder - 1 : j - 1 if j else None : -1]
            self.insert(name, rows)
            rows.clear()

    def close(self) -> None:
        self.database.execute("COMMIT")
        self.database.close()


class Truth:
    """The answers, counted while the events are made."""

    def __init__(self) -> None:
        self.by_name: dict[int, list[int]] = {}
        self.by_phase: dict[str, list[int]] = {}
        self.innermost: dict[str, list[int]] = {}
        self.by_range: dict[str, list[int]] = {}
        self.instances: dict[str, int] = {}

    @staticmethod
    def _add(table: dict[Any, list[int]], key: Any, duration: int) -> None:
        entry = table.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += duration

    def kernel(self, string: int, name: str, phase: str, ranges: tuple[str, ...], duration: int) -> None:
        self._add(self.by_name, string, duration)
        self._add(self.by_phase, phase, duration)
        self._add(self.innermost, ranges[-1] if ranges else "", duration)
        for label in ranges:
            self._add(self.by_range, f"{label}\t{name}", duration)


class Generator:
    """One host thread that launches, one stream that runs, one more thread that must not be matched."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.new, self.v26 = options.schema != "2022.4", options.schema == "2026.2"
        self.tables, self.truth, self.strings = Tables(options), Truth(), Strings()
        for text in ("[Unknown]", "[kernel.kallsyms]", "[Max depth]"):
            self.strings[text]
        self.layer = [
            (self.strings[n], self.strings[d], self.strings[f"_Z{len(n)}{n}v"], p, q, s)
            for n, d, p, q, s in LAYER
        ]
        calls = (
            "cudaLaunchKernel_v7000",
            "cudaGraphLaunch_v10000",
            "cudaMemcpyAsync_v3020",
            "cudaStreamSynchronize_v3020",
        )
        self.launch, self.graph, self.copy, self.sync = (self.strings[text] for text in calls)
        self.names = {number: text for text, number in self.strings.items()}
        self.random = random.Random(options.seed).random
        self.green = (None,) if self.new else ()
        self.kernel_26 = (None, None, None, None, 0, 0, 0, 1, 0, 0, None, "[]") if self.v26 else ()
        self.none_26 = (None,) if self.v26 else ()
        self.operators = [tuple("aten::" + n + "_" * q for q in range(options.op_ranges)) for n, *_ in LAYER]
        self.host_ns = self.device_ns = FIRST_NS
        self.correlation, self.kernels, self.phases, self.copies = 500, 0, 0, 0

    def nvtx(self, start: int, end: int, text: str, thread: int = GTID) -> None:
        plain, registered = (None, self.strings[text]) if self.options.registered else (text, None)
        head = (start, end, PUSHPOP, None, None, None, plain, thread, None, registered, 0)
        self.tables.rows[NVTX].append(head + (None,) * 8 + self.none_26)
        self.truth.instances[text] = self.truth.instances.get(text, 0) + 1

    def call(self, start: int, end: int, name: int) -> int:
        self.correlation += 1
        self.tables.rows[RUNTIME].append((start, end, 0, GTID, self.correlation, name, 0, None))
        return self.correlation

    def generate(self) -> None:
        while self.kernels < self.options.kernels:
            self.one_phase()
        self.tables.flush(True)
        self.fixed_tables()
        self.tables.close()

    def one_phase(self) -> None:
        prefill = self.phases % (self.options.decode_steps + 1) == 0
        phase = "prefill" if prefill else "decode"
        self.phases += 1
        begin = self.host_ns
        self.host_ns += 1500
        graph: tuple[int, int] | None = None
        if self.options.graph_decode and not prefill:
            graph = (self.host_ns, self.call(self.host_ns, self.host_ns + 41000, self.graph))
            self.host_ns += 42000
        for number in range(self.options.layers):
            if self.kernels >= self.options.kernels:
                break
            if graph is None:
                self.launched_layer(phase, f"layer.{number}")
            else:
                self.graph_layer(phase, number, graph)
            self.tables.flush()
        self.copy_and_wait()
        if self.options.nvtx_depth > 0:
            self.nvtx(begin, self.host_ns, phase)
        self.nvtx(begin + 700, self.host_ns + 9000, "tokenizer", GTID2)  # another thread, overlapping
        self.host_ns += 20000

    def duration(self, phase: str, prefill_ns: int, decode_ns: int) -> int:
        return int((prefill_ns if phase == "prefill" else decode_ns) * (0.92 + 0.16 * self.random()))

    def graph_layer(self, phase: str, number: int, graph: tuple[int, int]) -> None:
        """All kernels share the correlation id of the one launch."""
        self.host_ns += 300
        for i, (short, full, mangled, p, q, _) in enumerate(self.layer):
            if self.kernels >= self.options.kernels:
                return
            start = max(self.device_ns + 800, graph[0] + 9000)
            node = 4294967296 + number * len(self.layer) + i
            names, duration = (short, full, mangled), self.duration(phase, p, q)
            self.kernel(i, names, phase, start, duration, graph[1], node, (phase,))

    def launched_layer(self, phase: str, label: str) -> None:
        depth = self.options.nvtx_depth
        layer_begin, part, part_begin = self.host_ns, 0, self.host_ns
        self.host_ns += 300
        for i, (short, full, mangled, p, q, wanted) in enumerate(self.layer):
            if self.kernels >= self.options.kernels:
                break
            duration = self.duration(phase, p, q)
            if depth > 2 and wanted != part:
                if part:
                    self.nvtx(part_begin, self.host_ns, SUB[part])
                self.host_ns += 200
                part, part_begin = wanted, self.host_ns
                self.host_ns += 150
            start, correlation = self.launch_call(i)
            inner = (SUB[part],) if part and depth > 2 else ()
            ranges = (phase, label)[:depth] + inner + self.operators[i]
            self.kernel(i, (short, full, mangled), phase, start, duration, correlation, None, ranges)
        if part and depth > 2:
            self.nvtx(part_begin, self.host_ns, SUB[part])
            self.host_ns += 200
        if depth > 1:
            self.nvtx(layer_begin, self.host_ns, label)
            self.host_ns += 200

    def launch_call(self, i: int) -> tuple[int, int]:
        """Return (earliest start on the device, correlation id); operator ranges go around the call."""
        operators = self.options.op_ranges
        length = 4200 + int(2600 * self.random())
        self.host_ns += 2500
        for q, name in enumerate(self.operators[i]):
            self.nvtx(self.host_ns + 100 * q, self.host_ns + 100 * (2 * operators - q) + length + 300, name)
        self.host_ns += 100 * operators
        correlation = self.call(self.host_ns, self.host_ns + length, self.launch)
        start = max(self.device_ns + 800, self.host_ns + 5200)
        self.host_ns += length + 900 + 100 * operators
        return start, correlation

    def kernel(
        self, i: int, names: tuple[int, int, int], phase: str, start: int, duration: int, correlation: int,
        node: int | None, ranges: tuple[str, ...],
    ) -> None:  # fmt: skip
        short, full, mangled = names
        grid = (1 << (6 + i % 7)) * (4 if phase == "prefill" else 1)
        head = (
            start,
            start + duration,
            0,
            1,
            *self.green,
            7,
            correlation,
            GPID,
            full,
            short,
            mangled,
            0,
            0,
            40,
        )
        shape = (grid, 1, 1, 128 << (i % 2), 1, 1, 0, 0, 0, 0, self.kernels + 1, 102400, node, 0)
        self.tables.rows[KERNEL].append(head + shape + self.kernel_26)
        self.device_ns = start + duration
        self.kernels += 1
        self.truth.kernel(full, self.names[full], phase, ranges, duration)

    def copy_and_wait(self) -> None:
        """The token goes to the host, which waits for it."""
        correlation = self.call(self.host_ns, self.host_ns + 6000, self.copy)
        start = max(self.device_ns + 800, self.host_ns + 5000)
        head = (start, start + 1600, 0, 1, *self.green, 7, correlation, GPID, 8, 2, None, 2, 1)
        self.tables.rows[MEMCPY].append(head + (None,) * 7 + ((1,) if self.v26 else ()))
        self.copies += 1
        self.device_ns = start + 1600
        begin = self.host_ns + 6500
        self.host_ns = max(self.device_ns + 2000, begin + 1000)
        correlation = self.call(begin, self.host_ns, self.sync)
        head = (begin, self.host_ns, 0, 1, *self.green, 7, correlation, GPID)
        self.tables.rows[SYNC].append((*head, *self.none_26, 3, 0, *self.none_26))
        self.host_ns += 1500

    def fixed_tables(self) -> None:
        put = self.tables.insert
        put("TARGET_INFO_GPU", [(
            VM, 0, "NVIDIA A100-SXM4-80GB", "0000:07:00.0", 1, 41943040, 85899345920, 2039000000000, 1410000000, 108,
            0, "0", None, "GA100", 0, "", "", 161, 1, 65536, 4, 65536, 49152, 166912, 167936, 65536, 32, 3, 64, 32, 1024,
            1024, 1024, 64, 2147483647, 65535, 65535, 8, 0, 8, 0,
        )])  # fmt: skip
        if self.v26:
            put("TARGET_INFO_CUDA_DEVICE", [(0, 0, PID, None, 108)])
        put(
            "TARGET_INFO_SYSTEM_ENV",
            [(VM, "Local (CLI)", "CpuCores", 1, "2"), (VM, "Local (CLI)", "Hostname", 201, "gen")],
        )
        clock = (35255823190,) if self.v26 else ()
        begun = (1790857026000000000, "2026-10-01T12:17:06", "2026-10-01T12:17:06")
        put("TARGET_INFO_SESSION_START_TIME", [begun + clock])
        put("ANALYSIS_DETAILS", [(VM, self.host_ns, 0, self.host_ns)])
        put("PROCESSES", [(GPID, PID, "/usr/bin/python3")])
        put("ThreadNames", [(self.strings["python"], 20, GTID), (self.strings["tokenizer"], 20, GTID2)])
        domain = (1100000000, None, DOMAIN_CREATE, None, None, None, "default", GTID, None, None, 1)
        put(NVTX, [domain + (None,) * (8 + self.v26)])
        put("ENUM_NSYS_EVENT_TYPE", [
            (59, "NvtxPushPopRange", "NVTX Push/Pop Range"), (60, "NvtxStartEndRange", "NVTX Start/End Range"),
            (75, "NvtxDomainCreate", "NVTX Domain Create"),
        ])  # fmt: skip
        put("ENUM_CUDA_MEMCPY_OPER", [
            (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"), (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
            (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        ])  # fmt: skip
        put("ENUM_CUDA_MEM_KIND", [
            (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"), (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
            (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        ])  # fmt: skip
        product, schema = VERSIONS[self.options.schema]
        major, minor, _ = schema.split(".")
        put("META_DATA_EXPORT" if self.new else "EXPORT_META_DATA", [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"), ("EXPORT_PRODUCT_VERSION", product),
            ("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_SCHEMA_VERSION_MAJOR", major),
            ("EXPORT_SCHEMA_VERSION_MINOR", minor), ("EXPORT_SCHEMA_VERSION_MICRO", "0"),
        ])  # fmt: skip
        put("StringIds", [(number, text) for text, number in self.strings.items()])

    def answers(self) -> dict[str, Any]:
        return {
            "kernels": self.kernels,
            "kernel_ns": sum(entry[1] for entry in self.truth.by_name.values()),
            "memcpy": self.copies,
            "phase_instances": self.phases,
            "range_instances": self.truth.instances,
            "by_name": {self.names[string]: entry for string, entry in self.truth.by_name.items()},
            "by_phase": self.truth.by_phase,
            "by_innermost": self.truth.innermost,
            "by_range_kernel": self.truth.by_range,
            "args": vars(self.options),
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=lambda text: int(float(text)), default=100000)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--decode-steps", type=int, default=31, help="decode steps after each prefill")
    parser.add_argument(
        "--nvtx-depth", type=int, default=3, choices=(0, 1, 2, 3), help="1 phase, 2 +layer, 3 +attn/mlp"
    )
    parser.add_argument(
        "--op-ranges", type=int, default=0, help="nested ranges around every launch (emit_nvtx: about 4)"
    )
    parser.add_argument("--registered", action="store_true", help="range names as textId instead of text")
    parser.add_argument(
        "--graph-decode", action="store_true", help="decode steps are one cudaGraphLaunch each"
    )
    parser.add_argument("--disorder", type=int, default=0, help="reverse rows in blocks of this many")
    parser.add_argument("--schema", choices=tuple(VERSIONS), default="2022.4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    options = parser.parse_args(argv)
    generator = Generator(options)
    generator.generate()
    Path(options.out + ".truth.json").write_text(json.dumps(generator.answers(), indent=1, sort_keys=True))
    size = Path(options.out).stat().st_size
    print(
        json.dumps(
            {
                "out": options.out,
                "kernels": generator.kernels,
                "calls": generator.correlation - 500,
                "bytes": size,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
