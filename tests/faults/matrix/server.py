"""Servers that do not start, lie, break off, die and hang: what was measured is kept, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.process.tools import has_package
from tests.faults.matrix.case import NO_MODEL, Arguments, Case, Running, fixed
from tests.faults.processes import wait_for
from tests.serving_stub import Behaviour, stub_environment

_ROOT = Path(__file__).resolve().parents[3]
_SERVE = (
    "run", *NO_MODEL, "model=llama_tiny", "pipeline.serve.enable=true", "pipeline.serve.certify=false", "pipeline.serve.requests=6",
    "pipeline.serve.new_tokens=4", "pipeline.serve.concurrency=[2]", "artifacts.runs_dir={run}",
)  # fmt: skip
_REFUSED = {
    "a URL of another machine": ("http://192.0.2.1:8000", "is not this machine"),
    "a URL that only looks local": ("http://127.0.0.1.example.com", "is not this machine"),
    "a URL with a password": ("http://me:q9Zsecret@127.0.0.1", "contains a user name or password"),
    "a URL of a file": ("file:///etc/passwd", "not an http or https URL"),
}
_BROKEN = {
    "every request is refused": ("500", "no request of the warm-up was answered: HTTP 500"),
    "every request is too many": ("429", "HTTP 429"),
    "invalid JSON": ("invalid-json", "invalid stream"),
    "a page in place of a stream": ("invalid-sse", "not an event"),
    "half an event": ("half-chunk", "ends within an event"),
    "connections are reset": ("reset", "no request of the warm-up was answered"),
    "a line without end": ("endless-line", "an event of more than"),
    "nothing in the answer": ("empty", "without a finish reason"),
}


def _started(*more: str) -> Arguments:
    """The stub in place of vLLM, with a checkpoint that nobody reads."""

    def build(folder: Path) -> list[str]:
        (folder / "checkpoint").mkdir()
        engine = [
            "pipeline.serve.engine=vllm", f"pipeline.serve.executable=[{sys.executable},-m,tests.serving_stub]",
            f"pipeline.serve.model={folder / 'checkpoint'}",
        ]  # fmt: skip
        return [*fixed(*_SERVE)(folder), *engine, *more]

    return build


def _behaving(behaviour: Behaviour) -> dict[str, str]:
    behaviour.model = "as-started"
    return {**stub_environment(behaviour), "PYTHONPATH": str(_ROOT)}


def _while_loading(number: signal.Signals) -> Callable[[Running], None]:
    def send(running: Running) -> None:
        log = running.folder / "run" / "serve" / "server.stderr.log"
        wait_for(lambda: log.is_file() and b"under way" in log.read_bytes())
        os.kill(running.process.pid, number)

    return send


def _first_point_kept(folder: Path) -> None:
    lines = (folder / "run" / "serve" / "requests.jsonl").read_text().splitlines()
    assert sum('"status": "ok"' in line for line in lines) >= 6


def _cases() -> Iterator[Case]:
    for name, (url, phrase) in _REFUSED.items():
        arguments = fixed(*_SERVE, "pipeline.serve.engine=attach", f"pipeline.serve.url={url}")
        yield Case("server", name, arguments, 2, (phrase,), writes_nothing=True)
    if not has_package("aiohttp"):
        return
    for name, (fault, phrase) in _BROKEN.items():
        env = _behaving(Behaviour(fault=fault))
        yield Case("server", name, _started(), (1, 4), (phrase,), {"serve": "failed"}, "failed", env=env)
    yield Case(
        "server", "ends at its start", _started(), (1, 4), ("ended before it was healthy", "planted words"), {"serve": "failed"}, "failed",
        env=_behaving(Behaviour(fault="exits-at-start", say="planted words")),
    )  # fmt: skip
    yield Case(
        "server", "dies under load", _started("pipeline.serve.concurrency=[1,2]"), 1, ("the server ended during the load",),
        {"serve": "failed"}, "failed", env=_behaving(Behaviour(die_after_requests=13)), check=_first_point_kept,
    )  # fmt: skip
    yield Case(
        "server", "is never healthy", _started("pipeline.serve.start_timeout_s=2"), (1, 4), ("not healthy after 2 s",),
        {"serve": "failed"}, "failed", env=_behaving(Behaviour(healthy_after_s=1e6)),
    )  # fmt: skip
    yield Case(
        "server", "hangs on stop", _started("pipeline.serve.stop_timeout_s=1"), 0, (), {"serve": "degraded"}, "ok",
        env=_behaving(Behaviour(ignore_sigterm=True)),
    )  # fmt: skip
    yield Case(
        "server", "hostile names and logs", _started(), 0, (), {"serve": "ok"}, "ok",
        env=_behaving(Behaviour(say="\x1b]0;pwned\x07 <script>alert(1)</script>")),
    )  # fmt: skip
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        slow = Behaviour(decode_s=0.2, say="under way")
        yield Case(
            "server", f"{number.name} under load", _started("pipeline.serve.new_tokens=200"), code, ("interrupted",),
            {"serve": "failed"}, "interrupted", env=_behaving(slow), during=_while_loading(number), slow=True,
        )  # fmt: skip
    yield Case(
        "server", "kill -9 under load", _started("pipeline.serve.new_tokens=200"), -9, status="running",
        env=_behaving(Behaviour(decode_s=0.2, say="under way")), during=_while_loading(signal.SIGKILL), slow=True,
    )  # fmt: skip


CASES = tuple(_cases())
