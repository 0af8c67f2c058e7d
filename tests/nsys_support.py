"""Shared by the Nsight tests: a configuration without Hydra, a stage context, a stand-in for nsys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.config import schema
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.stage import StageConfig
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.stages.base import StageContext
from llm_perf_opt.stages.nsys.config import NsysConfig
from tests.support import python_program, write_program


class RecordedProgress:
    """Keeps what a stage reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[RecordedProgress]:
        self.notes.append(title)
        yield self

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self.notes.append(note or "")

    def say(self, message: str) -> None:
        self.notes.append(message)


def app_config(nsys: NsysConfig | None = None, **sections: Any) -> schema.AppConfig:
    """An AppConfig of defaults; ``run=RunConfig(...)`` and so on replace sections."""
    parts: dict[str, Any] = {
        "run": schema.RunConfig(),
        "artifacts": schema.ArtifactsConfig(runs_dir="/unused"),
        "model": schema.ModelConfig(),
        "infer": schema.InferConfig(),
        "dataset": schema.DatasetConfig(),
        "hardware": schema.HardwareConfig(),
        "workload_command": schema.WorkloadCommandConfig(),
    }
    pipeline: dict[str, StageConfig] = {"nsys": nsys or NsysConfig(enable=True)}
    return schema.AppConfig(**{**parts, "pipeline": pipeline, **sections})


def stage_context(root: Path, nsys: NsysConfig | None = None, **sections: Any) -> StageContext:
    return StageContext(app_config(nsys, **sections), Artifacts.for_run(root), RecordedProgress())


def with_command(*expected: str) -> dict[str, Any]:
    return {"workload_command": schema.WorkloadCommandConfig(command=list(expected), timeout_s=60.0)}


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has collected yet (a zombie) does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def ask_tool(argv: Sequence[str | Path], output: Path, tries: int = 3) -> Path:
    """Run a vendor tool until it has written a file; it fails now and then on a busy machine, and not always by code.

    For what the tool does on its own, before anything of ours is asserted.
    """
    for _ in range(tries):
        done = run_probe([str(word) for word in argv], timeout_s=240.0)
        if output.is_file() and output.stat().st_size and done.ended == "exit":
            return output
        output.unlink(missing_ok=True)
    raise AssertionError(f"{argv[0]} did not write {output.name} in {tries} tries: {done.text[-2000:]}")


FAKE_NSYS = """import os, pathlib, signal, subprocess, sys, time
arguments = sys.argv[1:]
verb = arguments[0] if arguments else ""
state = pathlib.Path({state!r})
if verb == "--version":
    print("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
elif verb == "stats" and "--help-reports" in arguments:
    print("\\nThe following built-in reports are available:\\n\\n  cuda_gpu_kern_sum[:base] -- CUDA GPU Kernel Summary")
elif verb == "profile" and "--help" in arguments:
    print("\\t-t, --trace=\\n\\t--cuda-graph-trace=\\n")
elif verb == "shutdown":
    (state / "shutdown").write_text(" ".join(arguments))
elif verb == "export" and {exports}:
    import sqlite3
    target = next(word.partition("=")[2] for word in arguments if word.startswith("--output="))
    with sqlite3.connect(target) as database:
        database.execute("create table StringIds (id integer, value text)")
elif verb == "profile":
    out = arguments[arguments.index("-o") + 1]
    with open(state / "calls", "a") as log:
        log.write("call\\n")
    calls = len((state / "calls").read_text().split())
    def report(path=out + ".nsys-rep", size=10):
        pathlib.Path(path).write_bytes(b"r" * size)
        print("Generated:\\n    " + str(path), flush=True)
{body}
else:
    sys.exit("unexpected: " + " ".join(arguments))
"""


def fake_nsys(folder: Path, body: str, *, exports: bool = False) -> Path:
    """A stand-in whose ``profile`` runs ``body``: for faults the real tool does not show on demand.

    ``exports``: it makes an empty export of any report; without, every export fails.
    """
    import textwrap

    folder.mkdir(parents=True, exist_ok=True)
    text = FAKE_NSYS.format(
        state=str(folder),
        exports=exports,
        body=textwrap.indent(textwrap.dedent(body), "    "),
    )
    return write_program(folder / "nsys", python_program(text))


RECORDING_NSYS = """import os, pathlib, shutil, subprocess, sys
real, store, arguments = {real!r}, pathlib.Path({store!r}), sys.argv[1:]
if arguments[:1] != ["profile"] or "--help" in arguments:
    os.execv(real, [real, *arguments])
report = pathlib.Path(arguments[arguments.index("-o") + 1] + ".nsys-rep")
workload = next(pathlib.Path(word.partition("=")[2]) for word in arguments if word.startswith("hydra.run.dir="))
if not (store / "said").exists():
    done = subprocess.run([real, *arguments], stdout=subprocess.PIPE)
    if done.returncode == 0 and report.exists():
        shutil.copy2(report, store / "report")
        shutil.copytree(workload, store / "workload")
        (store / "said").write_bytes(done.stdout)
    sys.stdout.buffer.write(done.stdout)
    sys.exit(done.returncode)
shutil.copyfile(store / "report", report)
shutil.copytree(store / "workload", workload, dirs_exist_ok=True)
sys.stdout.buffer.write((store / "said").read_bytes())
"""


def recording_nsys(folder: Path, real: Path) -> Path:
    """The real tool, which captures the built-in workload once and gives the same report to every further run of it."""
    store = folder / "store"
    store.mkdir(parents=True)
    text = RECORDING_NSYS.format(real=str(real), store=str(store))
    return write_program(folder / "nsys", python_program(text))
