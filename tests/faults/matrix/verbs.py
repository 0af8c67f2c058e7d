"""Attacks on verbs that start no workload (``doctor``, ``self-test-report``, ``ncu-profile``), on launchers, and on ``serve --url``."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from llm_perf_opt.process.tools import has_package
from tests.faults.hostile_server import Answer, HostileServer, plain, redirect, stream, without_end
from tests.faults.matrix.case import STATIC_ONLY, Arguments, Case, fixed

_OK = b"HTTP/1.1 200 OK\r\n"


def _bundle(**members: bytes) -> Arguments:
    """A bundle of ``doctor --self-test`` with these members; ``_`` in a name stands for ``-``."""

    def build(folder: Path) -> list[str]:
        with zipfile.ZipFile(folder / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(f"{name.replace('_', '-')}.json", content)
        return ["self-test-report", str(folder / "bundle.zip")]

    return build


def _file(content: bytes) -> Arguments:
    def build(folder: Path) -> list[str]:
        (folder / "bundle.zip").write_bytes(content)
        return ["self-test-report", str(folder / "bundle.zip")]

    return build


def _leaves(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "bundle.zip", "w") as archive:
        archive.writestr("../pwned", b"x")
        archive.writestr("self-test.json", b"{}")
        archive.writestr("machine.json", b"{}")
    return ["self-test-report", str(folder / "bundle.zip")]


def _not_written(folder: Path) -> None:
    assert not (folder.parent / "pwned").exists()


_BUNDLES: dict[str, Arguments] = {
    "not a zip": _file(b"PK\x03\x04" + b"\0" * 100),
    "brackets": _bundle(self_test=b"[" * 200_000, machine=b"{}"),
    "a member of 20 MB": _bundle(self_test=b"0" * 20_000_000, machine=b"{}"),
    "texts for lists": _bundle(self_test=b'{"checks": "abc"}', machine=b'{"gpus": 3}'),
    "lists for objects": _bundle(self_test=b"[[], 3, null]", machine=b"[]"),
    "a number of 10,000 digits": _bundle(self_test=b'{"checks":[{"seconds":1' + b"0" * 10_000 + b"}]}", machine=b"{}"),
    "a lone surrogate": _bundle(self_test=b'{"checks":[{"name":"\\ud800"}]}', machine=b"{}"),
    "40 members": _bundle(**{f"m{number}": b"{}" for number in range(40)}),
}  # fmt: skip


def _fake(tool: str, script: str, *arguments: str) -> Arguments:
    """A command with a tool that is not what it says."""

    def build(folder: Path) -> list[str]:
        path = folder / tool
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return [part.replace("{tool}", str(path)).replace("{folder}", str(folder)) for part in arguments]

    return build


def _ncu(*arguments: str, script: str = "exit 0") -> Arguments:
    return _fake("ncu", script, "ncu-profile", "--ncu", "{tool}", "--output-dir", "{folder}/run", *arguments)


_NCU: dict[str, tuple[Arguments, int, str]] = {
    "without a program": (_ncu("--"), 2, "no program"),
    "of an ncu that says nothing": (_ncu("--", "true"), 4, "does not answer as Nsight Compute"),
    "of an ncu that floods": (
        _ncu("--", "true", script="head -c 300000 /dev/zero | tr '\\0' x"),
        4,
        "does not answer as Nsight Compute",
    ),
    "of an ncu that is killed": (_ncu("--", "true", script="kill -9 $$"), 4, "does not answer as Nsight Compute"),
    "with a limit of −1 s": (_ncu("--timeout", "-1", "--", "true"), 2, "--timeout"),
    "with a limit of 10^400 s": (_ncu("--timeout", "1e400", "--", "true"), 2, "--timeout"),
    "of kernels that are a bomb": (
        _fake("kernels.yaml", "[" * 200_000, "ncu-profile", "--kernel-config", "{tool}", "--", "true"),
        3,
        "kernels.yaml",
    ),
}  # fmt: skip
_LAUNCHERS = {
    "hydra/launcher=nobody": "hydra/launcher is refused",
    "hydra.launcher._target_=os.system": "is refused",
    "hydra.launcher.submitit_folder=/etc": "hydra.launcher",
}
_NOT_INSTALLED = {"slurm": "hydra_submitit_launcher", "ray_cluster": "hydra_ray_launcher"}


@contextlib.contextmanager
def _small(folder: Path) -> Iterator[None]:
    """Tools print without end and programs hang: nothing of that may reach memory or the console."""
    yield
    assert not (folder / "run" / "report.md").exists()


# Servers against the whole verb: a reason, a report, bounded time.


_ANSWERS: Mapping[str, Answer] = {
    "/health": plain(b"{}"),
    "/v1/models": plain(json.dumps({"data": [{"id": "m"}]}).encode()),
    "/metrics": plain(b"vllm:num_requests_running 1\n"),
}
_COMPLETIONS: dict[str, Answer] = {
    "half a chunk": _OK + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\ndata: {",
    "a chunk of 10^120000 bytes": _OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000 + b"\r\n",
    "headers without end": without_end(_OK, b"X-A: " + b"b" * 1000 + b"\r\n"),
    "events that are no JSON": stream(b"{]", b"[DONE]"),
    "a redirect to another machine": redirect("http://192.0.2.1/v1/completions"),
    "a slow drip": without_end(_OK + b"Content-Type: text/event-stream\r\n\r\n", b":\n\n", 0.02),
    "nothing": b"",
}
_EARLY: dict[str, dict[str, Answer]] = {
    "models without end": {"/v1/models": without_end(_OK + b"\r\n", b"[" * 10_000)},
    "models of another machine": {"/v1/models": redirect("http://192.0.2.1/v1/models")},
    "a page in place of models": {"/v1/models": plain(b"<html>" * 1000)},
}


class _Served:
    """A hostile server for the time of a case: the command line is made when its address is known."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.server = HostileServer({**_ANSWERS, **answers})

    def arguments(self, folder: Path) -> list[str]:
        return [
            "serve", "--url", self.server.url, "--requests", "1", "--concurrency", "1", "--warmup-requests", "1", "--new-tokens", "2",
            "--request-timeout-s", "2", "--start-timeout-s", "3", "--out", str(folder / "run"), "pipeline.serve.certify=false",
            "hardware.probe=false", "run.exclusive=false",
        ]  # fmt: skip


def _served(
    answers: Mapping[str, Answer],
) -> tuple[Arguments, Callable[[Path], contextlib.AbstractContextManager[object]]]:
    """The command line, and what holds while it runs; sockets are opened by the test, not when cases are listed."""
    held: list[_Served] = []

    def build(folder: Path) -> list[str]:
        held.append(_Served(answers))
        return held[-1].arguments(folder)

    return build, lambda _: held.pop().server


def _cases() -> Iterator[Case]:
    for what, arguments in _BUNDLES.items():
        yield Case("verb", f"self-test-report: {what}", arguments, 3)
    yield Case("verb", "self-test-report: a member that leads out", _leaves, (0, 3), check=_not_written)
    for what, (arguments, code, words) in _NCU.items():
        yield Case("verb", f"ncu-profile {what}", arguments, code, (words,), around=_small)
    for what, env in {
        "without a home": {"HOME": "/nowhere", "XDG_CACHE_HOME": "/proc/1/no"},
        "without tools": {"PATH": "/nowhere"},
        "with a cache that is a device": {"LLM_PERF_OPT_CACHE": "/dev/null"},
        "in a group that cannot be": {"RANK": "99999999999999999999", "WORLD_SIZE": "-1", "SLURM_PROCID": "x", "SLURM_NTASKS": "-3"},
    }.items():  # fmt: skip
        yield Case("verb", f"doctor {what}", fixed("doctor"), (0, 2), env=env)
    sweep = ("run", "--multirun", *STATIC_ONLY, "run.seed=1,2", "artifacts.runs_dir={run}")
    for override, words in _LAUNCHERS.items():
        yield Case(
            "verb", f"sweep with {override}", fixed(*sweep, override), 2, (words,), writes_nothing=True
        )
    for launcher, package in _NOT_INSTALLED.items():
        if not has_package(f"hydra_plugins.{package}"):
            yield Case(
                "verb", f"sweep on {launcher} without its package", fixed(*sweep, f"hydra/launcher={launcher}"), 2,
                ("is not installed", "pip install"), writes_nothing=True,
            )  # fmt: skip
    if has_package("aiohttp"):
        for what, answer in _COMPLETIONS.items():
            arguments, around = _served({"/v1/completions": answer})
            yield Case(
                "verb",
                f"serve --url: {what}",
                arguments,
                (1, 4),
                (),
                {"serve": "failed"},
                "failed",
                around=around,
            )
        for what, answers in _EARLY.items():
            arguments, around = _served(answers)
            yield Case("verb", f"serve --url: {what}", arguments, (1, 3, 4), around=around)


CASES = tuple(_cases())
