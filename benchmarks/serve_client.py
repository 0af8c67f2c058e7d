"""What the load client of the stage ``serve`` can do: events per second on one core, and the error of its time stamps.

    python -m benchmarks.serve_client                                                   # our client alone, seconds
    python -m benchmarks.serve_client --aiperf BIN --guidellm BIN                       # with peers in the same run, about two minutes

BIN is the program of a peer in an environment of its own (``pip install aiperf==0.13.0``; ``pip install guidellm==0.8.1``). The stub server runs in a
process of its own; clients and stub are bound to one core each where there are two. Events per second are those of the peer's own load time, from its
first request to its last answer, so its start does not count. ``by processor time`` is 1 ÷ the processor time of our client per event: what one core could
read if nothing else ran on it. Time-stamp error: arrival in the client's records − time of sending in the stub's, at half of the client's own capacity
(at most 10,000 events per second); of guidellm, which keeps no time per token, the first and the last token of every request.

The exit code is 1 when our client misses 20,000 events per second by processor time, or when the best round's time-stamp error (99th percentile) is
1 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.stages.serve.certify import _EVENT, _HEAD, _LAST, _chunked, certify_client
from llm_perf_opt.summary.statistics import percentile

EVENTS_PER_S = 20_000
ERROR_S = 1e-3
STREAMS = 16
PACE_MOST = 10_000
TOKENS = 200
REQUESTS = 160
Sent = dict[str, list[float]]
"""Answer → when each of its events was sent."""


# The stub of the comparison: it answers what peers ask for, and keeps when it sent what.


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, Any], numbers: Iterator[int]
) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            length = next(
                (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")),
                0,
            )
            body = await reader.readexactly(length)
            if not body:
                if path.startswith("/pace/"):
                    state["pace"], state["sent"] = float(path[6:]), {}
                known = state["sent"] if path == "/sent" else {"data": [{"id": "stub"}]}
                data = json.dumps(known).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(data)
                    + data
                )
            else:
                asked = json.loads(body)
                events = int(asked.get("max_completion_tokens") or asked["max_tokens"])
                await _send(writer, state, f"cmpl-{next(numbers)}", events)
            await writer.drain()
    writer.close()


async def _send(writer: asyncio.StreamWriter, state: dict[str, Any], name: str, events: int) -> None:
    writer.write(_HEAD)
    event, pace, times = _EVENT.replace(b"cmpl-stub", name.encode()), state["pace"], []
    due = time.perf_counter()
    for _ in range(events):
        if pace:
            due += 1 / pace
            await asyncio.sleep(max(due - time.perf_counter(), 0))
        times.append(time.time())
        writer.write(_chunked(event % times[-1]))
        await writer.drain()
        if not pace:
            await asyncio.sleep(0)
    state["sent"][name] = times
    writer.write(_chunked(_LAST % events) + b"0\r\n\r\n")


async def _stub() -> None:
    state: dict[str, Any] = {"pace": 0.0, "sent": {}}
    numbers = itertools.count()
    server = await asyncio.start_server(lambda r, w: _answer(r, w, state, numbers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def _fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


# Peers.


@dataclass(frozen=True)
class Measured:
    """What a client's own records say."""

    events: int
    seconds: float
    arrivals: dict[str, list[float | None]]
    """Answer → arrival of its events; ``None``: not kept."""

    @property
    def per_s(self) -> float:
        return self.events / self.seconds

    def errors(self, sent: Sent) -> list[float]:
        return sorted(
            there - here
            for name, times in self.arrivals.items()
            for here, there in zip(sent.get(name, ()), times, strict=False)
            if there is not None
        )


def _aiperf(folder: Path) -> Measured:
    """Chunk times by start, TTFT and the gaps between chunks; answers are told by their order of sending."""
    lines = [json.loads(line) for line in next(folder.rglob("profile_export.jsonl")).read_text().splitlines()]
    if bad := [line["error"] for line in lines if line.get("error")]:
        raise SystemExit(f"aiperf: {len(bad)} of {len(lines)} requests failed: {bad[0]}")
    arrivals: dict[str, list[float | None]] = {}
    for place, line in enumerate(sorted(lines, key=lambda one: one["metadata"]["request_start_ns"])):
        metrics, at = line["metrics"], line["metadata"]["request_start_ns"] / 1e9
        gaps = [metrics["time_to_first_token"]["value"], *metrics["inter_chunk_latency"]["value"]]
        arrivals[f"place-{place}"] = [at + passed / 1e3 for passed in itertools.accumulate(gaps)]
    starts = [line["metadata"]["request_start_ns"] for line in lines]
    ends = [line["metadata"]["request_end_ns"] for line in lines]
    return Measured(len(lines) * TOKENS, (max(ends) - min(starts)) / 1e9, arrivals)


def _guidellm(folder: Path) -> Measured:
    report = json.loads((folder / "benchmarks.json").read_text())["benchmarks"][0]["requests"]
    if report["errored"]:
        error = report["errored"][0]["info"]["error"]
        raise SystemExit(f"guidellm: {len(report['errored'])} requests failed: {error}")
    arrivals: dict[str, list[float | None]] = {}
    times = [(one["response_id"], one["info"]["timings"]) for one in report["successful"]]
    for name, held in times:
        first, last = held["first_token_iteration"], held["last_token_iteration"]
        arrivals[name] = [first, *[None] * (TOKENS - 2), last]
    seconds = max(held["request_end"] for _, held in times) - min(held["request_start"] for _, held in times)
    return Measured(len(times) * TOKENS, seconds, arrivals)


def _aiperf_command(program: str, url: str, tokenizer: Path, folder: Path) -> list[str]:
    return [
        program, "profile", "-m", "stub", "-u", url, "--tokenizer", str(tokenizer), "--endpoint-type", "completions", "--streaming",
        "--concurrency", str(STREAMS), "--request-count", str(REQUESTS), "--synthetic-input-tokens-mean", "8", "--output-tokens-mean", str(TOKENS),
        "--use-server-token-count", "--artifact-dir", str(folder), "--ui", "none", "--workers-max", "1",
    ]  # fmt: skip


def _guidellm_command(program: str, url: str, tokenizer: Path, folder: Path) -> list[str]:
    return [
        program, "run", "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--backend", f"kind=openai_http,target={url},model=stub,request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={TOKENS}",
        "--output", f"kind=json,path={folder / 'benchmarks.json'}", "--disable-console",
    ]  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A load client of others."""

    name: str
    program: str
    command: Callable[[str, str, Path, Path], list[str]]
    read: Callable[[Path], Measured]


def _measure_peer(peer: Peer, url: str, tokenizer: Path, work: Path) -> tuple[Measured, float]:
    """Return (the load as fast as it goes, the time-stamp error at half that rate)."""
    found: list[Measured] = []
    sent: Sent = {}
    for number, pace in enumerate((0.0, None)):
        if pace is None:
            pace = min(found[0].per_s / 2, PACE_MOST) / STREAMS
        _fetch(f"{url}/pace/{pace}")
        folder = work / f"{peer.name}-{number}"
        folder.mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LLM_PERF_OPT")}
        done = subprocess.run(
            peer.command(peer.program, url, tokenizer, folder),
            capture_output=True, text=True, cwd=folder, env=environment, timeout=600, check=False,
        )  # fmt: skip
        try:
            found.append(peer.read(folder))
        except (FileNotFoundError, StopIteration, KeyError, TypeError, ValueError) as error:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
            raise SystemExit(f"{peer.name}: no result ({type(error).__name__}: {error})\n{last}") from error
        sent = _fetch(f"{url}/sent")
    held = found[1]
    if all(name.startswith("place-") for name in held.arrivals):
        # aiperf keeps its own ids: the stub's answers in the order in which they began are its requests in the order of their start.
        names = sorted(sent, key=lambda name: sent[name][0])[-len(held.arrivals) :]
        renamed = dict(zip(names, held.arrivals.values(), strict=True))
        held = Measured(held.events, held.seconds, renamed)
    errors = held.errors(sent)
    return found[0], percentile(errors, 0.99) if errors else float("nan")


def _write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer, so that peers can make prompts of any words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(alphabet)}))
    return folder


def _compare(peers: Sequence[Peer], work: Path) -> None:
    stub = subprocess.Popen([sys.executable, __file__, "--stub"], stdout=subprocess.PIPE, text=True)
    try:
        if stub.stdout is None:
            raise SystemExit("the stub server did not start")
        url = f"http://127.0.0.1:{int(stub.stdout.readline())}"
        _pin(stub.pid, first=False)
        tokenizer = _write_tokenizer(work / "tokenizer")
        for peer in peers:
            fast, error = _measure_peer(peer, url, tokenizer, work)
            print(f"| {peer.name} | {fast.per_s:,.0f} | – | {1e3 * error:.2f} ms |", flush=True)
    finally:
        stub.terminate()
        stub.wait(10)


def _pin(pid: int, *, first: bool) -> None:
    """Bind a process to one half of the processors: clients to the first, the stub to the last."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, {cores[0]} if first else {cores[-1]})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement of our client")
    parser.add_argument("--aiperf", metavar="BIN", help="program of aiperf")
    parser.add_argument("--guidellm", metavar="BIN", help="program of guidellm")
    parser.add_argument("--stub", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stub:
        asyncio.run(_stub())
    peers = [
        Peer(name, program, command, read)
        for name, program, command, read in (
            ("aiperf", options.aiperf, _aiperf_command, _aiperf),
            ("guidellm", options.guidellm, _guidellm_command, _guidellm),
        )
        if program
    ]
    with tempfile.TemporaryDirectory() as folder:
        rounds = [certify_client(Path(folder), seconds=options.seconds) for _ in range(options.rounds)]
        print("| client | events/s | by processor time | time-stamp error p99 |\n|---|---|---|---|")
        for number, one in enumerate(rounds, 1):
            error = f"{1e3 * one.stamp_error_p99_s:.2f} ms" if one.stamp_error_p99_s is not None else "none"
            print(f"| ours, round {number} | {one.capacity_per_s:,.0f} | {1 / one.event_s:,.0f} | {error} |")
        if peers:
            _compare(peers, Path(folder))
    possible = statistics.median(1 / one.event_s for one in rounds)
    best = min(abs(one.stamp_error_p99_s or 0.0) for one in rounds)
    print(
        f"ours, median by processor time: {possible:,.0f} events/s; best time-stamp error: {1e3 * best:.2f} ms"
    )
    return int(possible < EVENTS_PER_S or best >= ERROR_S)


if __name__ == "__main__":
    sys.exit(main())
