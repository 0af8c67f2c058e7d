"""Exit codes as documented, verb by verb: what is wrong, and what the program must end with and say."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.commands import VERBS
from tests.support import QUICK, cli

LONG = "n" * 300
CASES: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
    ("run", ("--plan", "run.repeats=0"), 2, "run.repeats"),
    ("run", ("--plan", "run.threads=100000000"), 2, "run.threads"),
    ("run", ("--plan", "model.seed=-1"), 2, "model.seed"),
    ("run", ("--plan", "pipeline.workload.timeout_s=nan"), 2, "timeout_s"),
    ("run", ("--plan", "pipeline.nsys.timeout_s=nan"), 2, "timeout_s"),
    ("run", ("--plan", "model.path=/no/such/checkpoint"), 3, "model.path"),
    ("run", ("--experimental-rerun", "x.pickle"), 2, "is refused"),
    ("report", ("absent",), 3, "is not a directory"),
    ("report", (LONG,), 4, "File name too long"),
    ("report", ("empty",), 3, "manifest.json"),
    ("report", ("broken",), 3, "summary.json"),
    ("ingest", ("--out", "o"), 2, "nothing to ingest"),
    ("ingest", ("--timings", "absent.json", "--out", "o"), 3, "does not exist"),
    ("ingest", ("--timings", LONG, "--out", "o"), 3, "does not exist"),
    ("ingest", ("--timings", "negative.json", "--out", "o"), 3, "decode_s"),
    ("ingest", ("--trace", "negative.json", "--out", "o"), 3, "traceEvents"),
    ("ingest", ("--nsys", "negative.json", "--out", "o"), 3, "neither an nsys"),
    ("ingest", ("--ncu", "negative.json", "--out", "o"), 3, "not a CSV page"),
    ("ingest", ("--static", "negative.json", "--out", "o"), 3, "is missing"),
    ("ingest", ("--timings", "good.json", "--out", LONG), 4, "too long"),
    ("ingest", ("--timings", "good.json", "--out", "o", "--device", "RTX 1"), 2, "not in the catalogue"),
    ("ingest", ("--timings", "good.json", "--out", "o", "--dtype", "float3"), 2, "float3"),
    ("ingest", ("--timings", "good.json", "--out", "o", "--catalogue", "negative.json"), 2, "devices"),
    ("compare", ("absent", "empty"), 3, "absent"),
    ("compare", ("a", "b", "--timeout", "nan"), 2, "seconds"),
    ("compare", ("a", "b", "--resamples", "99999999999"), 2, "at most"),
    ("what-if", ("absent",), 3, "absent"),
    ("what-if", ("broken",), 3, "summary.json"),
    ("what-if", ("broken", "--batch", "0"), 2, "at least 1"),
    ("what-if", ("broken", "--tensor-parallel", "two"), 2, "two"),
    ("improve", ("absent",), 3, "does not exist"),
    ("improve", ("broken",), 3, "summary.json"),
    ("improve", ("--budget", "soon", "--plan"), 2, "soon"),
    ("improve", ("--only", "prayer", "--plan"), 2, "prayer"),
    ("sweep-report", ("absent",), 3, "not a directory"),
    ("sweep-report", ("empty",), 3, "contains no sweep"),
    ("index", ("absent",), 3, "not a directory"),
    ("index", ("broken",), 0, "left out"),
    ("history", ("absent",), 3, "not a directory"),
    ("improve", ("--resume", "empty"), 3, "improve.json"),
    ("improve", ("--budget", "nan"), 2, "90s, 10m or 2h"),
    ("improve", ("--only", "thread"), 2, "threads"),
    ("migrate", ("absent",), 3, "absent"),
    ("serve", ("--rate", "fast"), 2, "rate"),
    ("serve", ("--url", "http://192.0.2.1:8000", "--model", "x"), 2, "allow_remote"),
    ("schema", ("summary",), 0, "$defs"),
    ("schema", ("report",), 2, "improve"),
    ("completion", ("bash",), 0, "complete"),
    ("completion", ("tcsh",), 2, "bash, zsh, fish"),
    ("ncu-profile", ("--timeout", "nan", "--", "true"), 2, "seconds"),
    ("top-kernels", ("absent.csv",), 3, "absent.csv"),
    ("top-kernels", ("negative.json",), 3, "negative.json"),
    ("top-kernels", ("negative.json", "--until-share", "nan"), 2, "share"),
    ("doctor", ("--no-such-option",), 2, "no-such-option"),
    ("self-test-report", ("good.json",), 3, "good.json"),
    ("schema", ("config",), 0, "$defs"),
    ("plugins", ("--json",), 0, "llm_perf_opt.stages"),
    ("plugins", ("--jsn",), 2, "jsn"),
    ("mcp", ("--root", "absent"), 2, "not a directory"),
    ("mcp", ("--root", "empty", "--allow-run"), 2, "--output-root"),
    ("mcp", ("--root", "empty", "--port", "80"), 2, "--http"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a few inputs, sound and not."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text('{"schema_version": "1.1", "run": 3}')
    (tmp_path / "good.json").write_text(json.dumps({"samples": 2, "prefill_s": 0.1, "decode_s": 0.7}))
    (tmp_path / "negative.json").write_text(json.dumps({"decode_s": -2.0}))
    return tmp_path


def test_every_verb_is_in_the_table() -> None:
    assert {verb for verb, *_ in CASES} == set(VERBS)


@pytest.mark.parametrize(("verb", "arguments", "code", "message"), CASES)
def test_exit_codes(verb: str, arguments: tuple[str, ...], code: int, message: str, folder: Path) -> None:
    done = cli(verb, *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def _shell(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    line = command.replace("PROGRAM", f"{shlex.quote(sys.executable)} -m llm_perf_opt")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=cwd, capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("PROGRAM --help > /dev/full", 4, "cannot write the output"),
        ("PROGRAM ingest --timings good.json --out o --json > /dev/full", 4, "cannot write the output"),
        ("PROGRAM --help | head -1", 0, ""),
        ("PROGRAM ingest --timings good.json --out o | head -c 1", 0, ""),
        ("PYTHONIOENCODING=ascii LANG=C PROGRAM ingest --timings good.json --out 'ü…'", 0, ""),
        ("mkdir gone && cd gone && rmdir ../gone && PROGRAM ingest --timings x --out o", 3, "does not exist"),
        ("mkdir gone && cd gone && rmdir ../gone && PROGRAM run --plan", 4, "working directory"),
    ],
)
def test_the_surroundings(command: str, code: int, message: str, folder: Path) -> None:
    done = _shell(command, folder)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_used_ends_with_3_and_quiet_prints_the_reason(folder: Path) -> None:
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text('{"model_type": "llama", "hidden_size": "wide"}')
    done = cli(
        "run", "-q", *QUICK, "model=llama_tiny", "model.config_name=null", "dataset=prompts", "model.weights=real",
        f"model.path={folder / 'checkpoint'}", f"artifacts.runs_dir={folder / 'run'}", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
