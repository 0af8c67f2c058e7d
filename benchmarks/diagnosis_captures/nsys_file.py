"""Write ranks as ``nsys export --type sqlite`` does: one export per rank, or all ranks of a machine in one."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.nsys_export_schema import tables

from .events import HostEvent, RankEvents
from .gpus import A100, H100

VM = 1 << 48
KERNEL, RUNTIME, MEMCPY, SYNC, NVTX = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
PUSH_POP, DOMAIN_CREATE = 59, 75
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
PROPERTIES = {gpu.name: gpu.properties for gpu in (H100, A100)}


def write_nsys(path: Path, ranks: Sequence[RankEvents], schema: str = "2024.2") -> Path:
    """Write the ranks' events into one export."""
    path.unlink(missing_ok=True)
    export = _Export(schema)
    for rank in ranks:
        export.add(rank)
    export.save(path)
    return path


class _Export:
    """Rows by table, with names as numbers of ``StringIds``."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.columns = {name: [column for column, _ in listed] for name, listed in tables(schema).items()}
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.columns}
        self.strings: dict[str, int] = {}
        for kind, text, label in (
            (59, "NvtxPushPopRange", "NVTX Push/Pop Range"),
            (60, "NvtxStartEndRange", "NVTX Start/End Range"),
            (75, "NvtxDomainCreate", "NVTX Domain Create"),
        ):
            self.rows["ENUM_NSYS_EVENT_TYPE"].append({"id": kind, "name": text, "label": label})
        for number, label in ((0, "Pageable"), (1, "Pinned"), (2, "Device")):
            name = f"CUDA_MEMOPR_MEMORY_KIND_{label.upper()}"
            self.rows["ENUM_CUDA_MEM_KIND"].append({"id": number, "name": name, "label": label})
        for number, label in ((1, "Host-to-Device"), (2, "Device-to-Host"), (8, "Device-to-Device")):
            self.rows["ENUM_CUDA_MEMCPY_OPER"].append({"id": number, "name": label, "label": label})

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings) + 1)

    def add(self, rank: RankEvents) -> None:
        pid = 25_286 + rank.rank
        process = VM | pid << 24
        shift = rank.clock_offset_ns
        self.rows["PROCESSES"].append({"globalPid": process, "pid": pid, "name": "python3"})
        for number, name in enumerate(("python3", "pt_autograd_0")):
            thread = process | pid + 97 * number
            self.rows["ThreadNames"].append({"nameId": self.text(name), "priority": 20, "globalTid": thread})
        self._gpu(rank)
        for event in rank.host:
            thread = process | pid + 97 * event.thread
            if event.kind == "range":
                self._range(event, thread, shift)
            elif event.kind == "call":
                self._call(event, thread, process, rank.device, shift)
        self._devices(rank, process, shift)

    def _gpu(self, rank: RankEvents) -> None:
        sizes = PROPERTIES[rank.gpu]
        self.rows["TARGET_INFO_GPU"].append({
            "vmId": 1, "id": rank.device, "name": rank.gpu, "busLocation": f"0000:{rank.device + 1:02x}:00.0",
            "isDiscrete": 1, "totalMemory": sizes["totalGlobalMem"], "smCount": sizes["numSms"], "cuDevice": rank.device,
            "uuid": f"GPU-{rank.device}", "computeMajor": sizes["computeMajor"], "computeMinor": sizes["computeMinor"],
        })  # fmt: skip

    def _range(self, event: HostEvent, thread: int, shift: int) -> None:
        collective = event.name.startswith("nccl:")
        name = "ncclAllReduce" if collective else event.name
        row = {
            "start": event.start_ns + shift,
            "end": event.end_ns + shift,
            "eventType": PUSH_POP,
            "globalTid": thread,
        }
        self.rows[NVTX].append(row | {"text": name, "domainId": int(collective)})

    def _call(self, event: HostEvent, thread: int, process: int, device: int, shift: int) -> None:
        times = {
            "start": event.start_ns + shift,
            "end": event.end_ns + shift,
            "correlationId": event.correlation,
        }
        name = self.text(_call_name(event.name))
        self.rows[RUNTIME].append(
            times
            | {
                "eventClass": int(event.name.startswith("cuL")),
                "globalTid": thread,
                "nameId": name,
                "returnValue": 0,
            }
        )
        if event.name.endswith("Synchronize"):
            kind = 4 if "Device" in event.name else 3
            self.rows[SYNC].append(
                times
                | {
                    "deviceId": device,
                    "contextId": 1,
                    "streamId": 7,
                    "globalPid": process,
                    "syncType": kind,
                    "eventId": 0,
                }
            )

    def _devices(self, rank: RankEvents, process: int, shift: int) -> None:
        for number, event in enumerate(rank.devices):
            row: dict[str, Any] = {
                "start": event.start_ns + shift, "end": event.end_ns + shift, "deviceId": rank.device, "contextId": 1,
                "streamId": event.stream, "correlationId": event.correlation, "globalPid": process,
                "graphNodeId": event.graph_node,
            }  # fmt: skip
            if event.kind == "memcpy":
                kind = next(value for key, value in COPY_KINDS.items() if key in event.name)
                host = 0 if "Pageable" in event.name else 1
                ends = {"srcKind": host if kind == 1 else 2, "dstKind": host if kind == 2 else 2}
                self.rows[MEMCPY].append(row | {"bytes": event.bytes, "copyKind": kind} | ends)
                continue
            full = _nsys_name(event.name)
            grid = dict(zip(("gridX", "gridY", "gridZ"), event.grid, strict=True))
            block = dict(zip(("blockX", "blockY", "blockZ"), event.block, strict=True))
            sizes = dict.fromkeys(
                ("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal"), 0
            )
            names = {
                "demangledName": self.text(full),
                "shortName": self.text(_short(full)),
                "mangledName": self.text(_short(full)),
            }
            self.rows[KERNEL].append(
                row
                | grid
                | block
                | sizes
                | names
                | {"registersPerThread": 96, "gridId": number, "launchType": 1}
            )

    def save(self, path: Path) -> None:
        version = {
            "2022.4": ("2022.4.2.1", "3.0.0"),
            "2024.2": ("2024.2.1.0", "3.11.1"),
            "2026.2": ("2026.2.1.0", "3.25.0"),
        }[self.schema]
        meta = "EXPORT_META_DATA" if self.schema == "2022.4" else "META_DATA_EXPORT"
        for name, value in (("EXPORT_PRODUCT_VERSION", version[0]), ("EXPORT_SCHEMA_VERSION", version[1])):
            self.rows[meta].append({"name": name, "value": value})
        self._session()
        self.rows["StringIds"] = [{"id": number, "value": text} for text, number in self.strings.items()]
        database = sqlite3.connect(path)
        database.execute("PRAGMA synchronous=OFF")
        for table, declared in tables(self.schema).items():
            listed = ", ".join(f'"{column}" {kind}' for column, kind in declared)
            database.execute(f"CREATE TABLE {table} ({listed})")
            marks = ", ".join("?" * len(declared))
            values = (
                [row.get(column, _default(kind)) for column, kind in declared] for row in self.rows[table]
            )
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        database.commit()
        database.close()

    def _session(self) -> None:
        thread = self.rows["ThreadNames"][0]["globalTid"]
        domain = {"start": 1_100_000_000, "eventType": DOMAIN_CREATE, "globalTid": thread}
        self.rows[NVTX].append(domain | {"text": "default", "domainId": 0})
        self.rows[NVTX].append(domain | {"text": "NCCL", "domainId": 1})
        end = max(row["end"] for row in self.rows[RUNTIME])
        self.rows["ANALYSIS_DETAILS"].append(
            {"globalVid": VM, "duration": end, "startTime": 0, "stopTime": end}
        )
        self.rows["TARGET_INFO_SESSION_START_TIME"].append(
            {
                "utcEpochNs": 1_790_857_026_000_000_000,
                "utcTime": "2026-10-01T12:17:06",
                "localTime": "2026-10-01T12:17:06",
            }
        )


def _default(declared: str) -> int | str | None:
    """What a column that must not be null gets."""
    return None if "NOT NULL" not in declared else 0 if declared.startswith("INTEGER") else ""


def _call_name(name: str) -> str:
    """The runtime's symbol carries the version that introduced it."""
    known = {"cudaLaunchKernel": "7000", "cudaLaunchKernelExC": "11060", "cudaGraphLaunch": "10000"}
    return name if name.startswith("cuL") else f"{name}_v{known.get(name, '3020')}"


def _nsys_name(name: str) -> str:
    """Spell a kernel's name the way nsys demangles it."""
    text = name.replace("(anonymous namespace)", "<unnamed>").replace("char*", "char *")
    text = re.sub(r"\{lambda\(([^)]*)\)#(\d+)\}", r"[lambda(\1) (instance \2)]", text)
    text = re.sub(r"(?<=[<, ])(\d+)ul?(?=[,>])", r"(unsigned long)\1", text)
    return re.sub(r"(?<=[<, ])(\d+)(?=[,>])", r"(int)\1", text).replace(" >", ">")


def _short(name: str) -> str:
    """The function's own name."""
    plain = re.sub(r"^void ", "", name).replace("<unnamed>::", "").split("<", 1)[0]
    return plain.split("(", 1)[0].split("::")[-1]
