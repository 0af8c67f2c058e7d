"""Contract D: Nsight Compute configuration (seed 003), and E3, E4, A6, B10 where they concern ncu."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.analysis.ncu.metrics import NVPROF_NAMES
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.commands.ncu_profile import profile_main
from llm_perf_opt.commands.top_kernels import extract_main, read_kernel_list
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.stages.ncu.command import DEFAULT_SECTIONS, build_ncu_cmd
from llm_perf_opt.stages.ncu.config import NcuConfig
from llm_perf_opt.stages.ncu.diagnose import NO_KERNELS
from llm_perf_opt.stages.ncu.plan import config_errors, read_captured
from llm_perf_opt.stages.ncu.stage import NcuStage
from tests.ncu_support import TOOLS, context, profiling_stand_in
from tests.needs import example_reports

PRESETS = sorted((CONF_DIR / "profiling" / "ncu").glob("*.yaml"))
SUMMARY = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
SUMMARY += '90.0,900,9,100.0,1,1,1,0,"void ns::Sobel<float, (int)2>(uchar4 *)"\n10.0,100,1,100.0,1,1,1,0,other(int)\n\n'
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "ncu" / "release"
needs_ncu = pytest.mark.needs("ncu")


def ncu_config(tmp_path: Path, *overrides: str) -> NcuConfig:
    return context(tmp_path / "run", *overrides).stage_config("ncu", NcuConfig)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_D1_presets_hold_only_keys_of_the_schema(tmp_path: Path, preset: Path) -> None:
    content = yaml.safe_load(preset.read_text())
    assert {"target_processes", "nvtx", "set", "metrics", "sections", "export"} <= set(content["ncu_cli"])
    assert set(content) <= {"description", "chips", "ncu_cli"}
    config = ncu_config(tmp_path, f"profiling/ncu@pipeline.ncu={preset.stem}")
    assert config.ncu_cli.sections == content["ncu_cli"]["sections"]
    assert config.ncu_cli.metrics == content["ncu_cli"]["metrics"]
    assert config.ncu_cli.export.csv is True and config_errors(config) == []


def test_D1_a_users_glob_becomes_what_ncu_means() -> None:
    argv = build_ncu_cmd("/r", ["p"], nvtx_expr="decode*")
    assert argv[argv.index("--nvtx-include") + 1] == "regex:decode.*/"


def test_D2_the_presets_exist_and_describe_themselves() -> None:
    names = {path.stem for path in PRESETS}
    assert {"ncu.default", "ncu.rtx3090", "ncu.rtx3090.compute", "ncu.rtx3090.memory"} <= names
    for path in PRESETS:
        assert yaml.safe_load(path.read_text())["description"]
    default = yaml.safe_load((CONF_DIR / "profiling" / "ncu" / "ncu.default.yaml").read_text())
    assert list(DEFAULT_SECTIONS) == default["ncu_cli"]["sections"]
    for path in PRESETS:
        assert "flop_count" not in path.read_text()


def test_D3_signature_and_lists() -> None:
    parameters = inspect.signature(build_ncu_cmd).parameters
    assert parameters["target_processes"].default == "all" and parameters["metrics"].default is None
    as_list = build_ncu_cmd("/r", ["p"], metrics=["a__b.sum", "c__d.sum"])
    assert as_list == build_ncu_cmd("/r", ["p"], metrics="a__b.sum,c__d.sum")
    assert as_list[as_list.index("--metrics") + 1] == "a__b.sum,c__d.sum"
    assert "--metrics" not in build_ncu_cmd("/r", ["p"], sections=["SpeedOfLight"])


@needs_ncu
def test_D3_metrics_this_ncu_does_not_know_are_dropped_with_their_names(tmp_path: Path) -> None:
    messages: list[str] = []
    run = context(
        tmp_path / "run",
        "pipeline.ncu.ncu_cli.metrics=[gpu__time_duration.sum,bogus__thing.sum,flop_count_hp]",
        f"pipeline.ncu.executable={TOOLS[0]}",
        "pipeline.workload.command=[/bin/true]",
        say=messages,
    )
    warnings = [problem.message for problem in NcuStage().check(run) if problem.severity == "degraded"]
    assert any("bogus__thing.sum" in text for text in warnings)
    (old,) = [text for text in warnings if "flop_count_hp" in text]
    assert "nvprof" in old and all(name in old for name in NVPROF_NAMES["flop_count_hp"])
    (command,) = [line for line in NcuStage().plan(run) if "--metrics" in line]
    assert "bogus__thing" not in command and "op_hfma_pred_on.sum" in command
    assert not (tmp_path / "run" / "ncu").exists()


def test_D4_the_readme_names_every_key_and_its_flag() -> None:
    text = (CONF_DIR / "profiling" / "README.md").read_text()
    for key in inspect.get_annotations(type(NcuConfig().ncu_cli)):
        if key not in {"nvtx", "export"}:
            assert f"`ncu_cli.{key}`" in text
    for phrase in (
        "`ncu_cli.nvtx.include`",
        "`ncu_cli.export.csv`",
        "`--section`",
        "`--metrics a,b,c`",
        "`--target-processes`",
    ):
        assert phrase in text
    for preset in PRESETS:
        assert f"`{preset.stem}`" in text


def test_D5_defaults_of_the_scripts_are_the_four_sections() -> None:
    assert DEFAULT_SECTIONS == ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats")
    shell = (SCRIPTS / "ncu-profile-kernels.sh").read_text()
    assert f'DEFAULT_SECTIONS="{" ".join(DEFAULT_SECTIONS)}"' in shell


@needs_ncu
@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "ncu-profile-kernels.sh"])
def test_D5_own_command_line_and_no_metrics_by_default(script: str, tmp_path: Path) -> None:
    argv = [str(SCRIPTS / script), "--kernel-regex", "flash_fwd.*", "--dry-run", "--ncu", str(TOOLS[0])]
    argv += ["--output-dir", str(tmp_path / "out"), "--", "./bench", "--size", "2048"]
    if script.endswith(".py"):
        argv.insert(0, sys.executable)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True)
    output = done.stdout.replace("\\\n", " ").split()
    assert output.count("--section") == 4 and "--metrics" not in output
    assert output[-3:] == ["./bench", "--size", "2048"] and not (tmp_path / "out").exists()


@needs_ncu
@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "ncu-profile-kernels.sh"])
@pytest.mark.parametrize("regex", [r"a(b|c)\d+\(x\)$", 'it\'s "q" & $HOME `x` ; *', r"void f<.*>\(T1 \*\)\\"])
def test_D5_any_regex_reaches_ncu_unchanged(script: str, regex: str, tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[0], None)
    done = run_script(script, "--kernel-regex", regex, "--ncu", tool, "--output-dir", tmp_path / "out")
    assert (done.returncode == 4 and "fix:" in done.stderr) or NO_KERNELS in done.stderr
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert record["kernel_regex"] == regex and record["ncu"]["version"]
    assert (tmp_path / "out" / "cmd.txt").is_file()


def run_script(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    argv = [str(SCRIPTS / script), *map(str, options), "--", "/bin/echo", "a b"]
    argv = [sys.executable, *argv] if script.endswith(".py") else argv
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@needs_ncu
@pytest.mark.needs("ncu example reports")
@pytest.mark.parametrize("script", ["ncu-profile-kernels.py", "ncu-profile-kernels.sh"])
def test_D5_report_pages_and_provenance(script: str, tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[-1], example_reports()[-1])
    done = run_script(script, "--kernel-regex", "x", "--ncu", tool, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert read_ncu(tmp_path / "out").launches
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"run.ncu-rep", "raw.csv", "details.csv", "section_Occupancy.csv", "provenance.json"} <= names


def test_D5_kernel_lists_from_top_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.csv").write_text(SUMMARY)
    assert extract_main([str(tmp_path / "summary.csv"), "--topk", "2", "-o", str(tmp_path / "top.yaml")]) == 0
    listed = read_kernel_list(tmp_path / "top.yaml")
    assert listed.names == ["void ns::Sobel<float, (int)2>(uchar4 *)", "other(int)"]
    assert read_kernel_list(tmp_path / "top.yaml", 1).names == listed.names[:1]
    (tmp_path / "plain.yaml").write_text('- "g<1>(int)"\n')
    assert read_kernel_list(tmp_path / "plain.yaml").regex
    for bad in ("", "kernels: 3", "{", "kernels: [{rank: 1}]"):
        (tmp_path / "bad.yaml").write_text(bad)
        assert profile_main(["--kernel-config", str(tmp_path / "bad.yaml"), "--", "x"]) in {3, 4}
    assert extract_main([str(tmp_path / "absent.csv")]) == 3
    assert "fix:" in capsys.readouterr().err


@needs_ncu
def test_D5_the_shell_script_reads_the_same_kernel_list(tmp_path: Path) -> None:
    (tmp_path / "summary.csv").write_text(SUMMARY)
    extract_main([str(tmp_path / "summary.csv"), "-o", str(tmp_path / "top.yaml")])
    wanted = read_kernel_list(tmp_path / "top.yaml").regex
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[0], None)
    argv = [
        str(SCRIPTS / "ncu-profile-kernels.sh"),
        "--kernel-config",
        str(tmp_path / "top.yaml"),
        "--ncu",
        str(tool),
    ]
    done = subprocess.run(
        [*argv, "--output-dir", str(tmp_path / "out"), "--", "/bin/true"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 4 and NO_KERNELS in done.stderr
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["kernel_regex"] == wanted


# --- the stage -------------------------------------------------------------------------------------------


def test_B10_gating_off_passes_no_nvtx_flag_at_all() -> None:
    argv = build_ncu_cmd("/r", ["p"], nvtx_expr="decode*", use_nvtx=False)
    assert not [word for word in argv if "nvtx" in word]


@needs_ncu
@pytest.mark.parametrize("gating", ["true", "false"])
def test_B10_the_stage_follows_gating_nvtx(tmp_path: Path, gating: str) -> None:
    run = context(
        tmp_path / "run",
        f"pipeline.ncu.gating_nvtx={gating}",
        "pipeline.ncu.ncu_cli.nvtx.include=decode",
        "pipeline.workload.command=[/bin/true]",
    )
    (command,) = [line for line in NcuStage().plan(run) if line.startswith("run ") and "--export" in line]
    assert ("--nvtx-include" in command) is (gating == "true")


@needs_ncu
@pytest.mark.contract("E8")
def test_E4_without_nsys_there_is_no_kernel_filter(tmp_path: Path) -> None:
    run = context(tmp_path / "run", "pipeline.workload.command=[/bin/true]")
    assert read_captured(tmp_path / "run" / "nsys").tables == {}
    plan = NcuStage().plan(run)
    assert not [line for line in plan if "--kernel-name" in line] and "no filter" in plan[0]


@needs_ncu
@pytest.mark.contract("E8")
def test_E3_the_nsys_summary_is_used_where_it_exists(tmp_path: Path) -> None:
    run = context(tmp_path / "run", "pipeline.workload.command=[/bin/true]", "run.top_n_kernels=1")
    (tmp_path / "run" / "nsys").mkdir(parents=True)
    (tmp_path / "run" / "nsys" / "summary.csv").write_text(SUMMARY)
    plan = NcuStage().plan(run)
    assert re.match(r"cost +1\b.*\b90%", plan[0]), plan[0]
    (command,) = [line for line in plan if "--kernel-name" in line]
    assert "Sobel" in command and "other" not in command


@needs_ncu
@pytest.mark.needs("ncu example reports")
def test_A6_artifacts_of_a_run_decided_by_files_not_by_the_exit_code(tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[-1], example_reports()[-1])
    messages: list[str] = []
    run = context(
        tmp_path / "run",
        "pipeline.workload.command=[/bin/echo,hi]",
        f"pipeline.ncu.executable={tool}",
        say=messages,
    )
    result = NcuStage().run(run)
    assert result.exit_codes["ncu"] == 1 and result.status == "ok", result.reason
    folder = tmp_path / "run" / "ncu"
    names = {path.name for path in folder.iterdir()}
    assert {"run.ncu-rep", "raw.csv", "details.csv", "section_SpeedOfLight.csv", "cmd.txt"} <= names
    assert "cmd-rerun.txt" not in names
    assert {path.name for path in result.artifacts} >= {"run.ncu-rep", "raw.csv", "cmd.txt"}
    assert read_ncu(folder).launches[0].device_name
    # Before it begins what it may cost, afterwards what it did: one launch in seven passes.
    cost, did = [line for line in messages if line.startswith("ncu: ")]
    assert "replayed" in cost
    assert re.fullmatch(r"ncu: 1 launch profiled in 7 passes, \d[\d.]* (µs|ms|s) with loading", did), did


@needs_ncu
@pytest.mark.needs("ncu example reports")
@pytest.mark.contract("E8")
def test_E4_nothing_matched_so_ncu_runs_once_more_without_the_filter(tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[-1], example_reports()[-1], only_unfiltered=True)
    run = context(
        tmp_path / "run", "pipeline.workload.command=[/bin/echo,hi]", f"pipeline.ncu.executable={tool}"
    )
    (tmp_path / "run" / "nsys").mkdir(parents=True)
    (tmp_path / "run" / "nsys" / "summary.csv").write_text(SUMMARY)
    result = NcuStage().run(run)
    folder = tmp_path / "run" / "ncu"
    assert result.status == "degraded" and "filter" in str(result.reason)
    assert "--kernel-name" in (folder / "cmd.txt").read_text()
    assert "--kernel-name" not in (folder / "cmd-rerun.txt").read_text()
    assert (folder / "run.ncu-rep").is_file() and (folder / "targets.csv").is_file()
    assert set(result.exit_codes) >= {"ncu", "ncu-rerun"}


@needs_ncu
def test_E4_the_real_tool_on_a_program_without_kernels(tmp_path: Path) -> None:
    program = shutil.which("sleep") or "/bin/sleep"
    run = context(
        tmp_path / "run",
        f"pipeline.workload.command=[{program},'0.3']",
        f"pipeline.ncu.executable={TOOLS[0]}",
    )
    (tmp_path / "run" / "nsys").mkdir(parents=True)
    (tmp_path / "run" / "nsys" / "summary.csv").write_text(SUMMARY)
    result = NcuStage().run(run)
    assert result.status == "failed" and "profiled no kernel" in str(result.reason) and result.fix
    names = {path.name for path in (tmp_path / "run" / "ncu").iterdir()}
    assert {"cmd.txt", "cmd-rerun.txt"} <= names and "run.ncu-rep" not in names


def test_a_machine_without_a_gpu_skips_the_stage_with_a_hint(tmp_path: Path) -> None:
    run = context(tmp_path / "run", "run.device=cpu")
    problems = NcuStage().check(run)
    assert [problem.severity for problem in problems] == ["skip"] and problems[0].fix


@pytest.mark.parametrize(
    "override",
    [
        "pipeline.ncu.ncu_cli.replay_mode=bogus",
        "pipeline.ncu.ncu_cli.launch_count=0",
        "pipeline.ncu.ncu_cli.target_processes=some",
        "pipeline.ncu.ncu_cli.kernel_name_base=x",
        "pipeline.ncu.selection.until_share=2",
        "pipeline.ncu.ncu_cli.metrics=7",
    ],
)
def test_values_that_cannot_be_meant_name_their_key(tmp_path: Path, override: str) -> None:
    (error,) = config_errors(ncu_config(tmp_path, override))
    key = override.partition("=")[0]
    assert error.data["key"] == key and key in error.message and error.hint


def test_a_time_limit_that_cannot_be_meant_is_refused_with_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.ncu\.timeout_s=-1\.0") as caught:
        ncu_config(tmp_path, "pipeline.ncu.timeout_s=-1")
    assert caught.value.data["key"] == "pipeline.ncu.timeout_s" and caught.value.hint


@needs_ncu
def test_an_old_report_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    tool = profiling_stand_in(tmp_path / "bin", TOOLS[0], None)
    folder = tmp_path / "run" / "ncu"
    folder.mkdir(parents=True)
    (folder / "run.ncu-rep").write_bytes(b"old")
    result = NcuStage().run(
        context(tmp_path / "run", "pipeline.workload.command=[/bin/echo]", f"pipeline.ncu.executable={tool}")
    )
    assert result.status == "failed" and not (folder / "run.ncu-rep").exists()
