"""``llm-perf-opt self-test-report BUNDLE``: which claims of docs/devices.md a bundle confirms, refutes or does not touch.

A bundle comes from somebody else: only two members are read, by name and up to a size, and nothing is unpacked to disk.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.files import require_regular

_ACCELERATORS = ("cuda", "rocm", "xpu", "mps", "other")
EVERYWHERE = (*_ACCELERATORS, "cpu")


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of docs/devices.md, and the checks that settle it."""

    id: str
    statement: str
    devices: tuple[str, ...]
    """Kinds of device it is about."""
    checks: tuple[str, ...]
    """All of them must have passed; none: no check covers it."""


CLAIMS = (
    Claim(
        "device-choice", "`run.device=auto` takes the accelerator that torch offers", EVERYWHERE, ("device",)
    ),
    Claim("host-clock", "the host's clock is steady", EVERYWHERE, ("host clock",)),
    Claim("event-clock", "phases are timed by events of the device", _ACCELERATORS, ("device events",)),
    Claim(
        "torch-events",
        "`torch.Event` and `torch.accelerator` mean the same as on the simulated device",
        _ACCELERATORS,
        ("device events", "memory released", "engine eager"),
    ),
    Claim("peak-memory", "peak memory by phase comes from the allocator", _ACCELERATORS, ()),
    Claim("dtype-auto", "`model.dtype=auto` takes the data type of the table", EVERYWHERE, ()),
    Claim(
        "operators",
        "the torch profiler counts operators",
        EVERYWHERE,
        ("profiler operators", "profiler ranges"),
    ),
    Claim("kernels", "the torch profiler has kernels", ("cuda", "rocm", "xpu"), ("profiler kernels",)),
    Claim(
        "telemetry", "telemetry comes from the library of the table", ("cuda", "rocm", "cpu"), ("telemetry",)
    ),
    Claim("memory-release", "memory that is given back is free again", EVERYWHERE, ("memory released",)),
    Claim(
        "release-limit",
        "64 MiB suffice for what the device's libraries keep after a release",
        _ACCELERATORS,
        ("engine memory released",),
    ),
    Claim("tokens", "tokens match `generate()`", EVERYWHERE, ("engine eager",)),
    Claim("cuda-graphs", "tokens match `generate()` with CUDA graphs", ("cuda",), ("engine graphs",)),
    Claim("compile", "tokens match `generate()` with `torch.compile`", EVERYWHERE, ("engine compile",)),
    Claim("nsys-ranges", "nsys captures have the phases", ("cuda", "cpu"), ("nsys ranges",)),
    Claim("nsys-kernels", "nsys captures have the kernels of each phase", ("cuda",), ("nsys kernels",)),
    Claim(
        "nsys-graph-nodes",
        "nsys captures have the kernels inside CUDA graphs",
        ("cuda",),
        ("nsys graph kernels",),
    ),
    Claim(
        "nsys-profiler-api",
        "`capture_range=cudaProfilerApi` captures the measured passes only",
        ("cuda",),
        ("nsys cudaProfilerApi ranges", "nsys cudaProfilerApi kernels"),
    ),
    Claim(
        "ncu-counters",
        "ncu reads counters of the chosen kernels",
        ("cuda",),
        ("ncu", "ncu kernels", "counters"),
    ),
    Claim(
        "ncu-outer-range",
        "an ncu filter on an outer range finds the kernels inside",
        ("cuda",),
        ("ncu outer range",),
    ),
    Claim("nccl", "two ranks add up by NCCL", ("cuda",), ("collective",)),
)

Verdict = Literal["confirmed", "refuted", "not touched"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, and what a bundle says about it."""

    id: str
    statement: str
    verdict: Verdict
    reason: str


# Reading a bundle.


_MOST_FILE_BYTES = 16 << 20
_MOST_MEMBER_BYTES = 16 << 20
_MOST_MEMBERS = 32
_MOST_CHECKS = 200
_STATUSES = ("passed", "failed", "not possible")
_HINT = "give the .zip that llm-perf-opt doctor --self-test wrote"


def read_bundle(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result and the machine of a bundle; :class:`InputError` for anything that is not one."""
    require_regular(path)
    if not path.is_file():
        raise InputError(f"no such file: {path}", hint=_HINT, path=str(path))
    if path.stat().st_size > _MOST_FILE_BYTES:
        raise _refused(path, f"is larger than {_MOST_FILE_BYTES} bytes")
    try:
        with zipfile.ZipFile(path) as archive:
            names = Counter(member.filename for member in archive.infolist())
            if names.total() > _MOST_MEMBERS:
                raise _refused(path, f"has {names.total()} members, at most {_MOST_MEMBERS} are read")
            documents = [_member(path, archive, names, name) for name in ("self-test.json", "machine.json")]
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError) as error:
        # Damaged, encrypted, not JSON, or nested too deep (a RuntimeError).
        raise _refused(path, f"cannot be read: {one_line(str(error))[:200]}") from error
    result, machine = documents
    _check_shape(path, result)
    return result, machine


def _member(path: Path, archive: zipfile.ZipFile, names: Mapping[str, int], name: str) -> dict[str, Any]:
    if names.get(name, 0) != 1:
        raise _refused(path, f"has {names.get(name, 0)} members {name}, one is expected")
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(path, f"has a {name} in another compression than deflate")
    with archive.open(name) as stream:
        content = stream.read(_MOST_MEMBER_BYTES + 1)  # the stated size may be wrong
    if len(content) > _MOST_MEMBER_BYTES:
        raise _refused(path, f"has a {name} of more than {_MOST_MEMBER_BYTES} bytes")
    document = json.loads(content)
    if not isinstance(document, dict):
        raise _refused(path, f"has a {name} that is not an object")
    return document


def _check_shape(path: Path, result: Mapping[str, Any]) -> None:
    if result.get("schema") != 1:
        raise _refused(path, f"has schema {one_line(str(result.get('schema')))[:20]}, known is 1")
    checks = result.get("checks")
    if (
        not isinstance(checks, list)
        or len(checks) > _MOST_CHECKS
        or not isinstance(result.get("device"), str)
    ):
        raise _refused(path, "lacks a device or a list of checks, or has too many of them")
    for check in checks:
        right = isinstance(check, dict) and isinstance(check.get("name"), str)
        if not right or not isinstance(check.get("said"), str) or check.get("status") not in _STATUSES:
            raise _refused(path, "has a check without name, status or result")


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path} {why}", hint=_HINT, path=str(path))


# Judging the claims.


def device_kind(result: Mapping[str, Any]) -> str:
    """Return the kind of device a bundle is of; with a ROCm build of torch, ``cuda`` is an AMD GPU."""
    kind = str(result["device"]).partition(":")[0]
    if kind == "cuda" and any(
        isinstance(facts := check.get("facts"), dict) and facts.get("rocm")
        for check in result["checks"]
        if check["name"] == "device"
    ):
        return "rocm"
    return kind if kind in EVERYWHERE else "other"


def judge_claims(result: Mapping[str, Any]) -> list[Judged]:
    """Say of every claim whether the checks of a bundle confirm or refute it."""
    kind = device_kind(result)
    # Of two checks of one name, the worse one counts.
    worst_last = sorted(
        result["checks"], key=lambda check: ("passed", "not possible", "failed").index(check["status"])
    )
    found = {check["name"]: check for check in worst_last}
    return [Judged(claim.id, claim.statement, *_verdict(claim, kind, found)) for claim in CLAIMS]


def _verdict(claim: Claim, kind: str, found: Mapping[str, Mapping[str, Any]]) -> tuple[Verdict, str]:
    if kind not in claim.devices:
        return "not touched", f"is about {', '.join(claim.devices)}, and this is {kind}"
    if not claim.checks:
        return "not touched", "no check covers it"
    there = [found[name] for name in claim.checks if name in found]
    for check in there:
        if check["status"] == "failed" and check.get("compared", True) is True:
            return "refuted", _format_check(check)
    for check in there:
        if check["status"] != "passed":
            return "not touched", _format_check(check)
    missing = [name for name in claim.checks if name not in found]
    if missing:
        return "not touched", f"the bundle has no check '{missing[0]}'"
    return "confirmed", "; ".join(_format_check(check) for check in there)


def _format_check(check: Mapping[str, Any]) -> str:
    return f"{one_line(check['name'])}: {one_line(check['said'])[:300]}"


# The verb.


def main(arguments: Sequence[str]) -> int:
    """Command line of ``llm-perf-opt self-test-report``; 1 when a claim is refuted."""
    parser = verb_parser(
        "self-test-report",
        "Show which claims of docs/devices.md a self-test bundle confirms, refutes or does not touch.",
        one="the bundle refutes a claim",
    )
    parser.add_argument("bundle", type=Path, help="the .zip that doctor --self-test wrote")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    options = parser.parse_args(arguments)
    result, machine = read_bundle(options.bundle)
    judged = judge_claims(result)
    if options.json:
        document = {
            "schema": 1,
            "device": one_line(result["device"]),
            "kind": device_kind(result),
            "claims": [asdict(one) for one in judged],
            "failed_checks": _failed_checks(result),
        }
        print(json.dumps(document, indent=2))
    else:
        print(render(result, machine, judged))
    return 1 if any(one.verdict == "refuted" for one in judged) else 0


def _failed_checks(result: Mapping[str, Any]) -> list[str]:
    return [_format_check(check) for check in result["checks"] if check["status"] == "failed"]


def render(result: Mapping[str, Any], machine: Mapping[str, Any], judged: Sequence[Judged]) -> str:
    """Lay the verdicts out as text."""
    version = one_line(str(result.get("version")))[:40]
    lines = [f"bundle of {one_line(result['device'])[:60]} ({device_kind(result)}), llm-perf-opt {version}"]
    lines += [f"{label:<9} {text}" for label, text in _machine(machine)]
    for verdict in ("refuted", "confirmed", "not touched"):
        chosen = [one for one in judged if one.verdict == verdict]
        lines += ["", f"{verdict} ({len(chosen)})"]
        for one in chosen:
            lines += [f"  {one.id:<18} {one.statement}", f"  {'':<18} {one.reason}"]
    if failures := _failed_checks(result):
        lines += ["", f"failed checks ({len(failures)})", *(f"  {text}" for text in failures)]
    return "\n".join(lines)


def _machine(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what identifies the machine: devices, drivers, torch and tools, as far as they are there."""

    def part(*keys: str) -> Any:
        value: Any = machine
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    rows = [
        ("GPUs", part("machine", "gpus")),
        ("drivers", part("machine", "drivers")),
        ("torch", part("torch", "version")),
        ("tools", part("tools")),
    ]
    return [(label, one_line(json.dumps(value))[:300]) for label, value in rows if value]
