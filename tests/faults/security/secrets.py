"""Secrets of the command line and of the environment: in no artefact, on no console, in no capture."""

from __future__ import annotations

import functools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from llm_perf_opt.core.console.command_line import defect
from llm_perf_opt.core.console.logs import mask_other_logs
from llm_perf_opt.core.secrets import MASK, mask_arguments, mask_text
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.tools import find_tool
from tests.faults.matrix.case import NO_MODEL
from tests.faults.security.check import Check
from tests.nsys_support import fake_nsys
from tests.support import cli, read_json

SECRET = "q9ZverySecretValue77"
_ARTEFACTS = (
    "config.yaml", "manifest.json", "summary.json", "report.md", "report.html", "stakeholder_summary.md", "kernels.md",
    "run.log", "env.json", "inputs.yaml", "hardware.json", "nsys/cmd.txt",
)  # fmt: skip
_COMMAND = f"[python3,x.py,--api-key,{SECRET},'--token={SECRET}','https://me:{SECRET}@host/x']"
_SHAPES = {
    "of Hugging Face": f"hf_{SECRET}",
    "of OpenAI": f"sk-{SECRET}1234",
    "of GitHub": f"ghp_{SECRET}1234",
    "of GitLab": f"glpat-{SECRET}1234",
    "of AWS": "AKIAABCDEFGHIJKLMNOP",
    "of NVIDIA": f"nvapi-{SECRET}1234",
    "that is a JSON web token": "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl",
    "that is a private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQ\n-----END RSA PRIVATE KEY-----",
}


@functools.cache
def _run() -> tuple[tempfile.TemporaryDirectory[str], str]:
    """One run with secrets on its command line, whose capture fails and repeats them; what it printed."""
    folder = tempfile.TemporaryDirectory(prefix="secrets-")
    root = Path(folder.name)
    tool = fake_nsys(root / "tool", f'print("cannot log in: password={SECRET}"); sys.exit(3)')
    done = cli(
        "run", "-v", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.workload.repeats=0", f"pipeline.nsys.executable={tool}",
        f"pipeline.workload.command={_COMMAND}", f"pipeline.workload.env={{MY_PASSWORD:{SECRET},MY_SETTING:plain}}",
        f"artifacts.runs_dir={root / 'run'}", cwd=root,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return folder, done.stdout + done.stderr


def _artefact(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        content = (Path(_run()[0].name) / "run" / name).read_bytes()
        assert content
        assert SECRET.encode() not in content

    return run


def _printed(folder: Path) -> None:
    printed = _run()[1]
    assert "x.py" in printed or "log in" in printed
    assert SECRET not in printed


def _elsewhere(folder: Path) -> None:
    """Only the log of what the program itself printed may hold it."""
    run = Path(_run()[0].name) / "run"
    holding = [
        path.name for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert holding == ["run.stdout.log"], holding


def _plan(folder: Path) -> None:
    done = cli(
        "run",
        "--plan",
        *NO_MODEL,
        "pipeline.nsys.enable=true",
        f"pipeline.workload.command={_COMMAND}",
        cwd=folder,
    )
    assert "x.py" in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr


def _error(folder: Path) -> None:
    done = cli("run", f"model.path=https://me:{SECRET}@host/x", "model.weights=nonsense", cwd=folder)
    assert done.returncode == 2
    assert SECRET not in done.stdout + done.stderr


def _ingest_command(folder: Path) -> None:
    source = folder / f"password={SECRET}.json"
    source.write_text('{"samples": 2, "new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.7}')
    done = cli("ingest", f"--timings={source}", f"--out={folder / 'out'}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert SECRET not in str(read_json(folder / "out" / "summary.json")["run"]["command"])


def _defect_details(folder: Path) -> None:
    arguments = ["llm-perf-opt", "run", f"--api-key={SECRET}", f"model.path=https://me:{SECRET}@host/x"]
    with mock.patch.object(sys, "argv", arguments):
        place = Path(str(defect(ValueError(f"password={SECRET}")).data["details"]))
    text = place.read_text()
    place.unlink()
    assert "model.path" in text
    assert SECRET not in text


def _library_log(folder: Path) -> None:
    """What a library logs to a file that Hydra set up for it."""
    root = logging.getLogger()
    handler = logging.FileHandler(folder / "llm_perf_opt.log")
    root.addHandler(handler)
    formatters = [(one, one.formatter) for one in root.handlers]
    try:
        mask_other_logs()
        mask_other_logs()
        logging.getLogger("somebody.else").error("cannot reach https://me:%s@host\x1b[2J", SECRET)
    finally:
        root.removeHandler(handler)
        for one, formatter in formatters:
            one.setFormatter(formatter)
        handler.close()
    text = (folder / "llm_perf_opt.log").read_text()
    assert "cannot reach" in text
    assert SECRET not in text
    assert "\x1b" not in text


def _shape(secret: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        assert mask_text(f"it said {secret} twice") == f"it said {MASK} twice"

    return run


def _arguments(arguments: list[str]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        assert SECRET not in " ".join(mask_arguments(arguments))
        assert mask_arguments(arguments)[0] == arguments[0]

    return run


def _held_back(name: str, value: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with mock.patch.dict(os.environ, {name: value}):
            assert name not in allowed_environment()

    return run


def _handed_on(folder: Path) -> None:
    needed = {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HOME": "/hf",
        "LD_LIBRARY_PATH": "/lib",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with mock.patch.dict(os.environ, needed):
        allowed = allowed_environment()
    assert {name: allowed.get(name) for name in needed} == needed


def _named(folder: Path) -> None:
    assert allowed_environment({"HF_TOKEN": "hf_named"})["HF_TOKEN"] == "hf_named"


def _capture(folder: Path) -> None:
    """The real tool stores the environment of every process it can see."""
    program = "import os; print(sorted(os.environ))"
    done = cli(
        "run", *NO_MODEL, "pipeline.nsys.enable=true", "pipeline.nsys.trace=osrt", "pipeline.nsys.timeout_s=90",
        "pipeline.workload.repeats=0", f"pipeline.workload.command=[{sys.executable},-c,'{program}']",
        f"artifacts.runs_dir={folder / 'run'}", cwd=folder, env={"MY_LOGIN": SECRET, "HF_TOKEN": f"hf_{SECRET}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "run/nsys/run.nsys-rep").stat().st_size
    arguments = (SECRET.encode(), SECRET.encode("utf-16-le"))
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    holding = [path.name for path in files if any(word in path.read_bytes() for word in arguments)]
    assert holding == [], holding


def _checks() -> Iterator[Check]:
    for name in _ARTEFACTS:
        yield Check("secrets", f"of the command line in {name}", _artefact(name))
    yield Check("secrets", "of the command line on the console (-v)", _printed)
    yield Check("secrets", "of the command line anywhere else in the run", _elsewhere)
    yield Check("secrets", "of the command line in --plan", _plan)
    yield Check("secrets", "of the command line in an error", _error)
    yield Check("secrets", "of the command line in the summary of ingest", _ingest_command)
    yield Check("secrets", "in the details of a defect", _defect_details)
    yield Check("secrets", "in the log files of libraries", _library_log)
    for what, secret in _SHAPES.items():
        yield Check("secrets", f"a token {what}" if "that" not in what else f"a text {what}", _shape(secret))
    for phrase in (
        ["p", "--api-key", SECRET],
        ["p", f"--password={SECRET}"],
        ["p", f"AWS_SECRET_ACCESS_KEY={SECRET}"],
        ["p", f"postgres://me:{SECRET}@host/db"],
        ["p", "-H", f"Authorization: Bearer {SECRET}"],
    ):
        yield Check(
            "secrets", f"argument {phrase[1].partition('=')[0].partition(':')[0]}", _arguments(phrase)
        )
    for name, value in {
        "HF_TOKEN": "hf_x",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "CUDA_API_KEY": SECRET,
        "MY_DATABASE_LOGIN": SECRET,
        "http_proxy": f"http://me:{SECRET}@proxy:1",
        "PYTHON_SETTING": f"ghp_{SECRET}1234",
        "LD_AUDIT": "/tmp/x.so",
    }.items():
        yield Check("environment", f"{name} is held back", _held_back(name, value))
    yield Check("environment", "what programs need is handed on", _handed_on)
    yield Check("environment", "what a user names is handed on", _named)
    if find_tool("nsys") is not None:
        yield Check("environment", "a real capture holds no secret", _capture, slow=True)


CHECKS = tuple(_checks())
