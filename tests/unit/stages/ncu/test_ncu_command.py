"""Command lines, targets and diagnoses of Nsight Compute: pure, whole argument lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.stages.ncu.command import (
    accept_metrics,
    accept_sections,
    accept_set,
    build_import_cmd,
    build_ncu_cmd,
    estimated_passes,
    metric_list,
    nvtx_include,
    nvtx_includes,
)
from llm_perf_opt.stages.ncu.diagnose import NcuEvidence, diagnose, observed_passes
from llm_perf_opt.stages.ncu.probe import parse_chips, parse_metrics, parse_table, parse_version_text
from llm_perf_opt.stages.ncu.targets import (
    KernelTime,
    kernel_filter,
    missing_targets,
    read_kernel_summary,
    select_targets,
)
from tests.text_facts import mentions

PROGRAM = ["python", "-m", "work", "a b"]


def test_the_whole_command() -> None:
    argv = build_ncu_cmd(
        Path("/run/ncu/run"),
        PROGRAM,
        nvtx_expr="decode*",
        kernel_regex=r"(a|b\(c\))",
        kernel_name_base="demangled",
        set_name="roofline",
        metrics=["m__a.sum", "m__b.sum"],
        sections=["SpeedOfLight", "Occupancy"],
        replay_mode="application",
        filter_mode="per-launch-config",
        launch_skip=3,
        launch_count=2,
        log_file=Path("/run/ncu/logs/ncu.log"),
        extra_args=["--clock-control", "none"],
        executable="/opt/ncu",
    )
    assert argv == [
        "/opt/ncu", "--target-processes", "all", "--nvtx", "--nvtx-include", "regex:decode.*/",
        "--set", "roofline", "--section", "SpeedOfLight", "--section", "Occupancy",
        "--metrics", "m__a.sum,m__b.sum",
        "--kernel-name-base", "demangled", "--kernel-name", r"regex:(a|b\(c\))",
        "--replay-mode", "application", "--filter-mode", "per-launch-config",
        "--launch-skip", "3", "--launch-count", "2",
        "--log-file", "/run/ncu/logs/ncu.log", "--force-overwrite", "--export", "/run/ncu/run",
        "--clock-control", "none", "python", "-m", "work", "a b",
    ]  # fmt: skip


def test_the_least_command_has_no_filter_no_metrics_no_set() -> None:
    argv = build_ncu_cmd("/r", PROGRAM, use_nvtx=False, force_overwrite=False)
    assert argv == ["ncu", "--target-processes", "all", "--export", "/r", *PROGRAM]


def test_csv_log_asks_for_base_units() -> None:
    argv = build_ncu_cmd("/r", ["p"], use_nvtx=False, csv_log="/r.csv", metrics="a__b.sum, c__d.sum")
    assert argv[3:5] == ["--metrics", "a__b.sum,c__d.sum"]
    assert argv[5:12] == ["--csv", "--page", "raw", "--print-units", "base", "--log-file", "/r.csv"]


def test_import_command() -> None:
    assert build_import_cmd("/r.ncu-rep", page="details", section="Occupancy", print_details="all") == [
        "ncu", "--import", "/r.ncu-rep", "--csv", "--page", "details", "--print-units", "base",
        "--section", "Occupancy", "--print-details", "all",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        ("decode*", "regex:decode.*/"),
        ("decode", "decode/"),
        ("decode@LLM", "LLM@decode/"),
        ("decode*@LLM", "regex:LLM@decode.*/"),
        ("decode@*", "decode/"),
        ("*", "regex:.*/"),
        ("step.?", "regex:step\\.." + "/"),
        ("decode/", "decode/"),
        ("LLM@decode/", "LLM@decode/"),
        ("A/*/B", "A/*/B"),
        ("[A", "[A"),
        ("regex:dec.*", "regex:dec.*/"),
        ("regex:dec.*/", "regex:dec.*/"),
        ("raw:decode", "decode"),
        ("layer 3", "layer 3/"),
    ],
)
def test_ranges_become_what_ncu_means(written: str, passed: str) -> None:
    assert nvtx_include(written) == passed


def test_several_ranges_are_alternatives() -> None:
    assert nvtx_includes("prefill, decode*") == ["prefill/", "regex:decode.*/"]
    assert nvtx_includes(["prefill", "prefill", "decode"]) == ["prefill/", "decode/"]
    assert nvtx_includes(None) == nvtx_includes("") == nvtx_includes([]) == []
    argv = build_ncu_cmd("/r", ["p"], nvtx_expr=["prefill", "decode"])
    assert argv.count("--nvtx-include") == 2 and argv.count("--nvtx") == 1


def test_metrics_as_list_or_text() -> None:
    assert metric_list("a, b,,a") == metric_list(["a", "b", "a"]) == ["a", "b"]
    assert metric_list(None) == []


def test_nvprof_names_are_replaced_and_unknown_ones_named() -> None:
    known = {"gpu__time_duration", "sm__throughput", "smsp__sass_thread_inst_executed_op_fadd_pred_on"}
    accepted = accept_metrics(
        ["flop_count_sp", "gpu__time_duration.sum", "bogus__metric.sum", "launch__grid_size", "regex:sm__.*",
         "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed"],
        known,
    )  # fmt: skip
    assert accepted.names[:3] == [
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")
    ]
    assert accepted.names[3:5] == ["gpu__time_duration.sum", "launch__grid_size"]
    assert len(accepted.names) == 7
    assert mentions(accepted.warnings[0], "flop_count_sp", *accepted.names[:3])
    assert mentions(accepted.warnings[1], "bogus__metric.sum")


def test_nothing_is_dropped_when_ncu_could_not_be_queried() -> None:
    assert accept_metrics(["any__thing.sum"], None).names == ["any__thing.sum"]


def test_sections_and_sets_of_this_version() -> None:
    accepted = accept_sections(["SpeedOfLight", "Bogus"], {"SpeedOfLight"})
    assert accepted.names == ["SpeedOfLight"] and accepted.warnings[0].endswith("Bogus")
    assert accept_set("basic", {"default"}) is None and accept_set(None, set()) is None
    assert accept_set("full", {"full", "basic"}) == "full"
    with pytest.raises(ConfigError, match="no set 'fulll'"):
        accept_set("fulll", {"full"})


def test_cost_grows_with_what_is_collected() -> None:
    few = estimated_passes(None, ["SpeedOfLight"], [])
    assert 1 <= few < estimated_passes(None, ["SpeedOfLight", "MemoryWorkloadAnalysis"], ["a"] * 9)
    assert estimated_passes(None, [], []) > 1


# --- targets ---


def test_summaries_of_both_generations(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),GridXYZ,BlockXYZ,Name\n"
        '50.0,100,2,50.0,1 1 1,32 1 1,"f<int, 2>(int)"\n25.0,60,1,60.0,2 1 1,32 1 1,"f<int, 2>(int)"\n'
        "25.0,50,5,10.0,1 1 1,32 1 1,g(int)\n\n"
    )
    assert read_kernel_summary(old) == [KernelTime("f<int, 2>(int)", 160, 3), KernelTime("g(int)", 50, 5)]
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("Range,Style\n")
    with pytest.raises(InputError):
        read_kernel_summary(wrong)


TABLES = {
    "prefill": [KernelTime("a(int)", 90, 1), KernelTime("b(int)", 10, 1)],
    "decode": [KernelTime("c(int)", 600, 9), KernelTime("b(int)", 400, 9)],
}


def test_selection_by_time_per_phase_and_until_a_share() -> None:
    assert [target.name for target in select_targets(TABLES, top_n=2)] == ["c(int)", "b(int)"]
    by_phase = select_targets(TABLES, top_n=1, per_phase=True)
    assert [(target.name, target.phases) for target in by_phase] == [
        ("a(int)", ["prefill"]),
        ("c(int)", ["decode"]),
    ]
    assert [target.name for target in select_targets(TABLES, top_n=9, until_share=0.5)] == ["c(int)"]
    assert select_targets({}, top_n=3) == []


def test_one_filter_finds_all_targets_in_both_spellings(shared_data: Path) -> None:
    from llm_perf_opt.analysis.kernels.match import name_md5
    from llm_perf_opt.captures.ncu.reader import read_ncu

    folder = shared_data / "rtx5090-deepseek-ocr"
    kernels = read_kernel_summary(folder / "nsys" / "all-stage.cuda_gpu_kern_sum.csv")
    assert (len(kernels), sum(kernel.total_ns for kernel in kernels)) == (113, 4_946_064_742)
    names = [kernel.name for kernel in kernels]
    targets = [target.name for target in select_targets({"": kernels}, top_n=30)]
    expression = kernel_filter(targets, names)
    assert expression is not None
    found = [name for name in names if re.search(expression, name)]
    assert set(targets) <= set(found) and len(found) <= 36
    for launch in read_ncu(folder / "ncu").launches:
        wanted = next(name for name in names if name_md5(name) == launch.nsys_name_md5)
        assert re.search(str(kernel_filter([wanted], names)), launch.kernel)


def test_filter_by_function_and_without_targets() -> None:
    assert (
        kernel_filter(["void a::f<1>(int)", "g(int)", "void b::f<2>()"], [], name_base="function")
        == "^(f|g)$"
    )
    assert kernel_filter([], []) is None


def test_a_filter_too_long_for_a_command_line_falls_back_to_functions() -> None:
    names = [f"void f<Functor_{number:05d}_{'x' * 600}>(int)" for number in range(150)]
    assert kernel_filter(names, names) == "^(f)$"


@given(st.lists(st.sampled_from(["f", "g", "Kernel2"]), min_size=1, max_size=5), st.data())
def test_a_filter_always_finds_its_own_target(functions: list[str], data: st.DataObject) -> None:
    word = st.text("abcXYZ019_", min_size=1, max_size=6)
    names = [
        f"void ns::{name}<{', '.join(data.draw(st.lists(word, min_size=1, max_size=4)))}>(T1)"
        for name in functions
    ]
    for name in names:
        expression = kernel_filter([name], names)
        assert expression is not None
        assert re.search(expression, name) and re.search(expression, name.replace("ns::", ""))


def test_targets_that_were_not_profiled() -> None:
    targets = ["void ns::f<(int)1>(T1)", "void ns::g<(int)2>(T1)"]
    assert missing_targets(targets, ["void f<1>(T1)"]) == targets[1:]
    assert missing_targets(targets, ["f", "g"]) == []


# --- diagnosis ---


def evidence(text: str = "", *, written: bool = False, **more: object) -> NcuEvidence:
    fields: dict[str, object] = {"ended": "exit", "returncode": 0}
    return NcuEvidence(text=text, report_written=written, **{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "kind", "status"),
    [
        (evidence("==WARNING== No kernels were profiled."), "no-kernels", "failed"),
        (evidence("", written=True, kernels=0), "no-kernels", "failed"),
        (
            evidence("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", returncode=1),
            "permission",
            "failed",
        ),
        (
            evidence("==ERROR== Option '--section Bogus' did not match any section.", returncode=255),
            "section",
            "failed",
        ),
        (evidence("==ERROR== Failed to find metric x"), "metric", "failed"),
        (evidence("==ERROR== Invalid configuration for nvtx-include : a@b@c"), "nvtx", "failed"),
        (
            evidence("==ERROR== File r.ncu-rep already exists. Use '-f' for overwriting the file."),
            "exists",
            "failed",
        ),
        (evidence("==ERROR== Unable to write to file r.ncu-rep."), "unwritable", "failed"),
        (evidence("==ERROR== 'x' does not exist or is not an executable."), "program", "failed"),
        (evidence("==ERROR== unrecognised option '--bogus'"), "option", "failed"),
        (evidence("==WARNING== No metrics to collect found in sections."), "no-metrics", "failed"),
        (
            evidence("==ERROR== The application returned an error code (3).", returncode=3),
            "program",
            "failed",
        ),
        (
            evidence("==ERROR== The application returned an error code (3).", written=True, kernels=4),
            "program",
            "failed",
        ),
        (evidence("", ended="timeout", returncode=None, timeout_s=9.0), "timeout", "failed"),
        (evidence("", written=True, kernels=2, ended="timeout", timeout_s=9.0), "timeout", "degraded"),
        (evidence(""), "no-report", "failed"),
    ],
)
def test_every_known_ending_has_a_reason_and_a_fix(seen: NcuEvidence, kind: str, status: str) -> None:
    fault = diagnose(seen)
    assert fault is not None and (fault.kind, fault.status) == (kind, status)
    assert fault.fix and fault.message


def test_a_report_with_kernels_is_success_whatever_the_exit_code() -> None:
    assert diagnose(evidence("", written=True, kernels=3, returncode=143)) is None
    assert diagnose(evidence("", written=True, kernels=None)) is None


def test_passes_from_the_log() -> None:
    text = '==PROF== Profiling "f" - 0: 0%....50%....100% - 19 passes\n==PROF== Profiling "g<1>" - 1 (2/4): 0%....100% - 8 passes\n'
    assert observed_passes(text) == [19, 8]


def test_answers_of_the_tool() -> None:
    assert (
        parse_version_text("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2024.2.0.0 (build 3)\n")
        == "2024.2.0.0"
    )
    assert parse_version_text("something else") is None
    assert parse_chips("ad102, ga102, ga10b, gh100\n") == {"ad102", "ga102", "ga10b", "gh100"}
    assert parse_metrics("Metric Name\n-----\ndram__bytes    Counter  byte  # of bytes\n") == {"dram__bytes"}
    table = "Identifier  Display Name  Enabled Filename\n---\nSpeedOfLight   GPU Speed  yes  x.section\n"
    assert parse_table(table) == {"SpeedOfLight"}
