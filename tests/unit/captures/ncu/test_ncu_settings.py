"""Clocks, caches and ranges of a capture, from its own command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.captures.ncu.launches import NcuSettings
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.captures.ncu.settings import (
    settings_near,
    settings_of_arguments,
    settings_of_report,
    settings_of_text,
)
from llm_perf_opt.stages.ncu.command import build_ncu_cmd
from llm_perf_opt.stages.workload import replay_lines
from tests.needs import example_reports

PAGE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","gpu__time_duration.sum"\n"","","","","","","","","","","","ns"\n'
    '"0","1","p","h","k(int)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0","1000"\n'
)


@pytest.mark.parametrize(
    ("arguments", "clocks", "caches"),
    [
        ([], "base", "all"),
        (["--clock-control", "none"], "none", "all"),
        (["--clock-control=none", "--cache-control=none", "app"], "none", "none"),
        (["--set", "full", "--nvtx", "--cache-control", "none", "-f", "./app"], "base", "none"),
        (["--import-source", "on", "-o", "x", "./app", "--clock-control", "none"], "base", "all"),
    ],
)
def test_options_of_ncu_and_not_of_the_program(arguments: list[str], clocks: str, caches: str) -> None:
    assert settings_of_arguments(arguments, "x")[:2] == (clocks, caches)


def test_our_own_command_file_is_read_back() -> None:
    command = build_ncu_cmd(
        "/r/run",
        ["python", "-c", "print('--clock-control=none')"],
        nvtx_expr=["decode*", "prefill"],
        metrics=["a", "b"],
        extra_args=["--clock-control", "none"],
        executable="/opt/nsight/bin/ncu",
    )
    text = f"# Nsight Compute. Run again with: sh cmd.txt\n\n{replay_lines(command, cwd=Path('/tmp'))}\n"
    assert settings_of_text(text, "cmd.txt") == NcuSettings(
        "none", "all", ("regex:decode.*/", "prefill/"), "cmd.txt"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "echo hello\n",
        "ncu --import x.ncu-rep --csv\n",
        "ncu 'open\n",
        "ncu ./a\nncu --clock-control none ./b\n",
    ],
)
def test_files_without_information(text: str) -> None:
    assert settings_of_text(text, "cmd.txt") is None


def test_the_command_next_to_a_page_and_next_to_the_folders_of_phases(tmp_path: Path) -> None:
    for folder in ("decode", "prefill"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "raw.csv").write_text(PAGE)
    assert {launch.settings for launch in read_ncu(tmp_path).launches} == {None}
    (tmp_path / "decode" / "cmd.txt").write_text("ncu --nvtx --nvtx-include decode/ ./app\n")
    (tmp_path / "cmd.txt").write_text("ncu --clock-control none ./app\n")
    by_range = {
        launch.settings.nvtx_include: launch.settings.clock_control
        for launch in read_ncu(tmp_path).launches
        if launch.settings
    }
    assert by_range == {("decode/",): "base", (): "none"}
    (alone,) = read_ncu(tmp_path / "decode" / "raw.csv").launches
    assert alone.settings is not None and alone.settings.nvtx_include == ("decode/",)


def test_the_rerun_is_the_run_that_wrote_the_report(tmp_path: Path) -> None:
    (tmp_path / "cmd.txt").write_text("ncu --nvtx --nvtx-include decode/ --kernel-name regex:x ./app\n")
    (tmp_path / "cmd-rerun.txt").write_text("ncu --nvtx --nvtx-include decode/ --cache-control none ./app\n")
    found = settings_near(tmp_path)
    assert found is not None and (found.cache_control, found.source) == ("none", "cmd-rerun.txt")


@pytest.mark.needs("ncu example reports", "ncu-report")
def test_reports_contain_their_own_command_line() -> None:
    """2023 and later store it; those of 2022 do not, and nothing is said of them."""
    shown = {path: settings_of_report(path) for path in example_reports()}
    assert all(found is None or found[:3] == ("base", "all", ()) for found in shown.values())
    if any("nsight-compute-2023" in path.read_bytes().decode("latin-1") for path in shown):
        assert any(shown.values())
    for path, found in shown.items():
        assert {launch.settings for launch in read_ncu(path).launches} == {found}


@pytest.mark.parametrize(
    "content", [b"", b"NVR\0", b"NVR\0\xff\xff\xff\xff", b"NVR\0\x00\x00\x00\x00" + b"\x09" * 40]
)
def test_damaged_reports_give_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(content)
    assert settings_of_report(path) is None
