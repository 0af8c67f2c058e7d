"""Contract D5 and D6: the scripts around Nsight Compute, and the presets they mirror."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.commands import ncu_profile
from llm_perf_opt.commands.ncu_profile import profile_main
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.stages.ncu import diagnose
from llm_perf_opt.stages.ncu.command import DEFAULT_METRICS, DEFAULT_SECTIONS
from tests.ncu_support import TOOLS, profiling_stand_in

PRESETS = CONF_DIR / "profiling" / "ncu"
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "ncu" / "release"
needs_ncu = pytest.mark.needs("ncu")


def preset(name: str) -> dict[str, object]:
    content: dict[str, object] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())["ncu_cli"]
    return content


def start(script: str, *options: object, cwd: Path, program: str = "/bin/true") -> subprocess.Popen[str]:
    command = [str(SCRIPTS / script), *map(str, options), "--", program]
    if script.endswith(".py"):
        # No site packages and no PYTHONPATH: the standard library is all there is.
        command = [sys.executable, "-I", "-S", *command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def parsed(command: str) -> list[str]:
    return command.replace("\\\n", " ").replace("\\,", ",").split()


@needs_ncu
@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "ncu-profile-kernels.sh"])
def test_D6_the_scripts_have_the_sections_and_metrics_of_the_default_preset(
    script: str, tmp_path: Path
) -> None:
    options = ["--dry-run", "--metrics", "preset", "--ncu", TOOLS[0]]
    out, error = start(script, *options, cwd=tmp_path).communicate(timeout=60)
    text = parsed(out)
    sections = [text[place + 1] for place, word in enumerate(text) if word == "--section"]
    assert sections == preset("ncu.default")["sections"] == list(DEFAULT_SECTIONS), error
    assert text[text.index("--metrics") + 1].split(",") == preset("ncu.default")["metrics"]
    assert list(DEFAULT_METRICS) == preset("ncu.default")["metrics"]


def test_D6_the_memory_preset_is_the_plain_one_and_the_richer_one_has_another_name() -> None:
    plain, extended = preset("ncu.rtx3090.memory"), preset("ncu.rtx3090.memory.extended")
    assert plain == {
        "target_processes": "all",
        "nvtx": {"include": "decode*"},
        "set": "roofline",
        "sections": ["SpeedOfLight", "MemoryWorkloadAnalysis"],
        "metrics": None,
        "export": {"csv": True},
    }
    assert set(plain["sections"]) < set(extended["sections"])  # type: ignore[call-overload]
    assert extended["metrics"]
    assert set(preset("ncu.default")["sections"]) < set(preset("ncu.extended")["sections"])  # type: ignore[call-overload]


@needs_ncu
def test_D5_the_python_script_needs_no_installed_package(tmp_path: Path) -> None:
    process = start("ncu-profile-kernels.py", "--dry-run", "--ncu", TOOLS[0], cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "--section" in out


@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "extract-top-kernels.py"])
def test_D5_a_script_without_the_package_fails_with_one_line(script: str, tmp_path: Path) -> None:
    alone = Path(shutil.copy(SCRIPTS / script, tmp_path / script))  # no checkout around it
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(alone), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"error: [^\n]*'llm_perf_opt'; fix: [^\n]*pip install llm-perf-opt\n", done.stderr)


@needs_ncu
@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "ncu-profile-kernels.sh"])
def test_D5_two_starts_in_one_second_do_not_share_a_directory(script: str, tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[0], None)
    (tmp_path / "here").mkdir()
    started = [start(script, "--ncu", tool, cwd=tmp_path / "here") for _ in range(3)]
    for process in started:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 4, error
    folders = list((tmp_path / "here").glob("ncu-*"))
    assert len(folders) == 3
    assert all((folder / "provenance.json").is_file() for folder in folders)


def test_D5_hints_use_the_options_of_the_tool() -> None:
    kinds = {kind for _, kind, _, _ in diagnose._ERRORS} | {
        "timeout",
        "no-kernels",
        "no-metrics",
        "no-report",
    }
    for kind in kinds:
        fix = ncu_profile._FIXES.get(kind, "")
        assert "pipeline." not in fix
        if not fix:  # then the pipeline's own fix is said: it must name no key of the configuration
            (own,) = [fix for _, known, _, fix in diagnose._ERRORS if known == kind]
            assert "pipeline." not in own


@needs_ncu
def test_D5_a_program_that_is_not_there_is_named_without_a_configuration_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent")
    code = profile_main(["--ncu", str(TOOLS[0]), "--output-dir", str(tmp_path / "o"), "--", absent])
    output = capsys.readouterr().err
    assert code == ToolError.exit_code
    assert re.search(r"fix: [^\n]* --, ", output) and f"{tmp_path / 'o'}/logs" in output
    assert "pipeline." not in output


def test_D5_a_missing_tool_is_explained_without_a_configuration_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert profile_main(["--ncu", "/nowhere/ncu", "--", "x"]) == ToolError.exit_code
    output = capsys.readouterr().err
    message, _, hint = output.partition("fix:")
    assert "/nowhere/ncu" in message and "--ncu" in hint
    assert "pipeline." not in output
