"""A command that is forked does what one that is started anew does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import read_json
from tests.warm import added_folders, warm_server

SMALL = ("model=llama_tiny", "infer.max_new_tokens=2", "dataset.synthetic_tokens=8", "hardware.probe=false")


def anew(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_perf_opt", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "arguments",
    [["run", "--help"], ["run", "run.repeat=3"], ["docter"], ["run", "--cfg", "job"], ["report", "nowhere"]],
)
def test_the_same_output_and_the_same_exit(arguments: list[str], tmp_path: Path) -> None:
    warm = warm_server().run(arguments, tmp_path, timeout_s=120)
    expected = anew(arguments, tmp_path)
    assert (warm.returncode, warm.stdout, warm.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_has_the_directory_the_environment_and_the_command_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own_adapter.py").write_text(
        "from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter as OwnAdapter\n"
    )
    words = [
        *SMALL,
        "model.adapter=own_adapter:OwnAdapter",
        "pipeline.torch_profiler.enable=false",
        "artifacts.runs_dir=${oc.env:WHERE}",
    ]
    folders = os.pathsep.join([str(tmp_path / "more"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "WHERE": "here", "PYTHONPATH": folders}
    done = warm_server().run(["run", *words], tmp_path, environment, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "here" / "manifest.json")["command"][1:] == ["run", *words]
    assert "WHERE" not in os.environ


def test_two_at_once_and_one_of_them_killed(tmp_path: Path) -> None:
    forever = ["run", *SMALL, "infer.max_new_tokens=100000", "pipeline.static_analysis.enable=false"]
    first = warm_server().start(forever, tmp_path)
    assert warm_server().run(["--version"], tmp_path, timeout_s=120).returncode == 0
    assert first.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    first.kill()
    assert first.wait(30) == -signal.SIGKILL
    assert first.communicate(30)[0] == ""


def test_what_is_read_while_importing_needs_a_new_process() -> None:
    server = warm_server()
    assert server.can_run(os.environ)
    assert server.can_run({**os.environ, "MY_SETTING": "1", "PATH": "/bin"})
    known = os.environ.get("PYTHONPATH", "")
    assert server.can_run({**os.environ, "PYTHONPATH": f"/one/more:{known}"})
    assert not server.can_run({**os.environ, "PYTHONHASHSEED": "7"})
    assert not server.can_run({**os.environ, "OMP_NUM_THREADS": "7"})
    assert not server.can_run(
        {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    )


@pytest.mark.parametrize(
    ("wanted", "ours", "added"),
    [
        ("/more:/ours", "/ours", ["/more"]),
        ("/ours", "/ours", []),
        ("/more", "", ["/more"]),
        ("", "", []),
        ("/ours:/more", "/ours", None),
        ("/more", "/ours", None),
        ("", "/ours", None),
    ],
)
def test_folders_of_modules_may_come_before_the_known_ones_only(
    wanted: str, ours: str, added: list[str] | None
) -> None:
    assert added_folders({"PYTHONPATH": wanted}, {"PYTHONPATH": ours}) == added
