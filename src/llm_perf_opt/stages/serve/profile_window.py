"""A bounded window under the engine's own profiler, after the unprofiled load: start, load, stop, check of the traces.

Failures never affect the unprofiled results: each is a note of the window. Each step has a time limit, because engines
can take minutes to write a trace, or never do.
"""

from __future__ import annotations

import json
import shutil
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.stages.serve.config import ServeConfig, key_of

if TYPE_CHECKING:
    from llm_perf_opt.stages.serve.server import Server

PROFILE = "profile.json"
TRACES = "profile"
"""Folder of the traces below the stage's own: new for each run, so that no other run's trace is in it."""
PROFILED_REQUESTS = "profiled-requests.jsonl"
PROFILED_STEPS = "profiled-steps.jsonl"
_STEP_BYTES = 4 << 20
"""Forecast of a trace: bytes per step and rank without stacks."""
_START_S = 60.0
_POLL_S = 0.5
_STEADY_POLLS = 3
_PIECE = 1 << 20
_MOST_SALVAGED = 1 << 30
"""Bytes of text that are salvaged from a trace that ends early."""


@dataclass(slots=True)
class Window:
    """Result of the window; ``problem`` is the reason if there is nothing to read."""

    label: str
    begin_s: float = 0.0
    """Since 1970."""
    end_s: float = 0.0
    stop_s: float | None = None
    requests: int = 0
    forecast_bytes: int = 0
    traces: list[str] = field(default_factory=list)
    salvaged: list[str] = field(default_factory=list)
    problem: str | None = None
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the content of ``profile.json``."""
        return {"schema": 1, **asdict(self)}


def ranks_of(arguments: Sequence[str]) -> int:
    """Return how many traces to expect: ranks of tensor and pipeline parallelism."""
    found = 1
    for names in (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp")):
        for place, word in enumerate(arguments):
            key, _, value = word.partition("=")
            text = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
            if key in names and text.isdigit():
                found *= max(int(text), 1)
    return found


async def profile_load(
    server: Server,
    config: ServeConfig,
    folder: Path,
    label: str,
    send: Callable[[], Awaitable[int]],
) -> Window:
    """Profile one load; ``send`` sends its requests and returns how many were answered."""
    import asyncio  # not for those who read the files only

    window = Window(label)
    ranks = ranks_of(config.args)
    window.forecast_bytes = _STEP_BYTES * config.profile_steps * ranks
    free = shutil.disk_usage(folder).free
    if free < 2 * window.forecast_bytes:
        window.problem = (
            f"not started: the traces may take {window.forecast_bytes} bytes, and {free} are free"
        )
        return window
    status, answer = await asyncio.to_thread(server.get, "/start_profile", post=True, timeout_s=_START_S)
    if status != 200:
        window.problem = _describe_refusal(status, answer)
        return window
    window.begin_s = time.time()
    try:
        window.requests = await asyncio.wait_for(send(), config.profile_timeout_s)
    except TimeoutError:
        window.notes.append(f"the load did not end within {config.profile_timeout_s:g} s and was stopped")
    window.end_s = time.time()
    began = time.monotonic()
    status, answer = await asyncio.to_thread(
        server.get, "/stop_profile", post=True, timeout_s=config.profile_timeout_s
    )
    window.stop_s = time.monotonic() - began
    if status != 200:
        window.notes.append(f"/stop_profile: {_describe_status(status, answer)}")
    await _wait_for_traces(server, folder / TRACES, ranks, config.profile_timeout_s)
    check_traces(window, folder / TRACES, ranks)
    return window


def _describe_refusal(status: int | None, answer: str) -> str:
    if status == 404:
        return (
            "the server has no /start_profile: it was started without --profiler-config "
            "(a server that runs already is not restarted)"
        )
    if status == 409:
        return "the server is being profiled already (409): stop that profile first"
    return f"/start_profile: {_describe_status(status, answer)}"


def _describe_status(status: int | None, answer: str) -> str:
    return f"no answer ({answer[:200]})" if status is None else f"HTTP {status} {answer[:200]}".rstrip()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("**/*.json*") if path.is_file() and "trace" in path.name)


async def _wait_for_traces(server: Server, folder: Path, ranks: int, limit_s: float) -> None:
    """Wait until all ranks have a file and none grows any more, the server ends, or time is over."""
    import asyncio

    deadline = time.monotonic() + limit_s
    before: list[tuple[str, int]] = []
    steady = 0
    while time.monotonic() < deadline and server.is_alive and steady < _STEADY_POLLS:
        now = [(path.name, path.stat().st_size) for path in _files(folder)]
        steady = steady + 1 if len(now) >= ranks and now == before else 0
        before = now
        await asyncio.sleep(_POLL_S)


def check_traces(window: Window, folder: Path, ranks: int) -> None:
    """Check that the traces are complete; a truncated one is cut at its last complete event."""
    found = _files(folder)
    if not found:
        window.problem = f"no trace appeared in {folder.name}/"
        return
    for path in found:
        reason = _defect(path)
        if reason is None:
            window.traces.append(path.name)
            continue
        kept = salvage(path)
        if kept is None:
            window.notes.append(f"{path.name} cannot be used: {reason}")
            continue
        whole, events = kept
        window.traces.append(whole.name)
        window.salvaged.append(whole.name)
        window.notes.append(f"{path.name} is incomplete ({reason}): {events} events of it were kept")
    if len(window.traces) < ranks:
        window.notes.append(f"{len(window.traces)} of {ranks} ranks have a usable trace")
    if not window.traces:
        window.problem = "no trace can be used"


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the text of a trace; raises only after all decompressible text was yielded."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        unpack = zlib.decompressobj(wbits=31)
        while piece := stream.read(_PIECE):
            if not packed:
                yield piece
                continue
            while piece:
                yield unpack.decompress(piece, 8 * _PIECE)
                piece = unpack.unconsumed_tail
        if packed and not unpack.eof:
            raise EOFError("the end of the compressed data is missing")


def _defect(path: Path) -> str | None:
    """Return why a trace is incomplete; ``None``: compression and JSON are closed."""
    last = b""
    try:
        for piece in _pieces(path):
            last = (last + piece)[-64:]
    except (EOFError, zlib.error) as error:
        return f"its compression ends early: {error}"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return None if last.rstrip().endswith(b"}") else "its JSON is not closed"


def salvage(path: Path) -> tuple[Path, int] | None:
    """Write the complete events of a truncated trace; return the new file and their number."""
    held = bytearray()
    try:
        for piece in _pieces(path):
            held += piece
            if len(held) > _MOST_SALVAGED:
                break
    except (EOFError, OSError, zlib.error):
        pass
    text = held.decode("utf-8", errors="ignore")
    begin = text.find('"traceEvents"')
    begin = text.find("[", begin) if begin >= 0 else -1
    if begin < 0:
        return None
    decoder, place, events = json.JSONDecoder(), begin + 1, 0
    end = place
    while place < len(text):
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        try:
            _, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        events, end = events + 1, place
    if not events:
        return None
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    return atomic_write_text(path.with_name(f"{stem}.salvaged.json"), text[:end] + "]}"), events


def split_steps(path: Path, window: Window, target: Path) -> bool:
    """Move the step records since the start of the window to a separate file; return whether there are any.

    They are slower than the rest, and must not be mixed with unprofiled ones.
    """
    if not path.is_file() or not window.begin_s:
        return False
    usual: list[str] = []
    profiled: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        at = value.get("t", value.get("time_s")) if isinstance(value, dict) else None
        inside = isinstance(at, int | float) and at >= window.begin_s
        (profiled if inside else usual).append(line)
    if not profiled:
        return False
    atomic_write_text(target, "".join(profiled))
    atomic_write_text(path, "".join(usual))
    return True


def key_problems(config: ServeConfig) -> str | None:
    """Return why these keys do not allow a window; ``None``: they do."""
    from llm_perf_opt.stages.serve.config import ClientName, EngineName

    if config.profile and config.engine not in (EngineName.vllm, EngineName.attach):
        return f"{key_of('profile')}: only vLLM's profiler is known (engine={config.engine.value})"
    if config.profile and config.client is not ClientName.builtin:
        return f"{key_of('profile')}: the window needs the built-in client"
    return None
