from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.process import tools as checks
from llm_perf_opt.process.tools import HIDE
from llm_perf_opt.stages.nsys.probe import (
    NsysCapabilities,
    parse_flags,
    parse_reports,
    parse_version,
    parse_version_text,
    probe_nsys,
)
from tests.nsys_support import fake_nsys, write_program
from tests.support import python_program
from tests.text_facts import mentions

REPORTS_2022 = """
The following built-in reports are available:

  apigpusum[:base|:mangled] -- API & GPU Summary (CUDA API + kernels + mem ops)
  cudaapisum -- CUDA API Summary
  gpukernsum[:base|:mangled] -- CUDA GPU Kernel Summary
  nvtxsum -- NVTX Range Summary
"""
REPORTS_2024 = """
The following built-in reports are available:

  cuda_api_sum -- CUDA API Summary
  cuda_gpu_kern_gb_sum[:nvtx-name][:base|:mangled] -- CUDA GPU Kernel/Grid/Block Summary
  cuda_gpu_kern_sum[:nvtx-name][:base|:mangled] -- CUDA GPU Kernel Summary
"""
FLAGS = """
\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx, hotkey.
\t   When '-c nvtx' is used with --capture-range-end it ends.

\t--cuda-graph-trace=<granularity>[:<launch origin>]
\t--export=<format>[,<format>...]
\t--nvtx-domain-[include|exclude]=
"""


def capabilities(reports: str) -> NsysCapabilities:
    return NsysCapabilities("nsys", (2024, 2), "2024.2", parse_reports(reports), frozenset())


def test_report_names_of_both_generations() -> None:
    assert capabilities(REPORTS_2022).report_name("kernels") == "gpukernsum"
    assert capabilities(REPORTS_2022).report_name("ranges") == "nvtxsum"
    assert capabilities(REPORTS_2024).report_name("kernels") == "cuda_gpu_kern_sum"
    assert capabilities(REPORTS_2024).report_name("ranges") is None
    assert "cuda_gpu_kern_gb_sum" in parse_reports(REPORTS_2024)


def test_flags_and_versions() -> None:
    assert parse_flags(FLAGS) == {
        "capture-range",
        "cuda-graph-trace",
        "export",
        "nvtx-domain-include",
        "nvtx-domain-exclude",
    }
    text = parse_version_text("NVIDIA Nsight Systems version 2022.4.2.1-df9881f\n")
    assert text == "2022.4.2.1-df9881f"
    assert parse_version(text) == (2022, 4, 2, 1)
    assert parse_version("beta") == ()
    assert parse_version_text("something else") is None


def test_probe_asks_the_tool_once_per_file(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path, "pass")
    first = probe_nsys(tool)
    assert first.version == (2024, 2, 3, 38)
    assert first.reports == {"cuda_gpu_kern_sum"}
    assert first.flags == {"trace", "cuda-graph-trace"}
    assert probe_nsys(tool) is first


def test_a_program_that_is_not_nsys_is_a_tool_error(tmp_path: Path) -> None:
    impostor = write_program(tmp_path / "nsys", python_program("print('hello')\n"))
    with pytest.raises(ToolError) as caught:
        probe_nsys(impostor)
    assert mentions(caught.value.message, str(impostor), "hello"), "the program, and what it answers"
    with pytest.raises(ToolError) as caught:
        probe_nsys(tmp_path / "missing")
    assert mentions(caught.value.message, str(tmp_path / "missing"))


def test_the_configured_tool_is_used_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_nsys(tmp_path / "a", "pass")
    other = fake_nsys(tmp_path / "b", "pass")
    monkeypatch.setenv("LLM_PERF_OPT_NSYS", f"/missing/nsys:{other}")
    assert checks.find_tool("nsys", str(tool)) == tool
    assert checks.find_tool("nsys", "/missing/nsys") is None
    assert checks.find_tool("nsys") == other
    assert checks.find_tools("nsys")[0] == other
    monkeypatch.setenv("LLM_PERF_OPT_NSYS", "/missing/nsys")
    assert checks.find_tool("nsys") is None


def test_path_comes_after_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_nsys(tmp_path / "bin", "pass")
    monkeypatch.delenv("LLM_PERF_OPT_NSYS", raising=False)
    monkeypatch.setenv(HIDE, "")  # of the real one; this one stands in for it
    monkeypatch.setenv("PATH", f"{tool.parent}:{Path(shutil.which('env') or '/usr/bin/env').parent}")
    assert checks.find_tool("nsys") == tool


def test_space_of_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert checks.free_bytes(tmp_path / "a" / "b") > 0
