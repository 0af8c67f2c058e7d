from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.stages.nsys.command import (
    build_export_cmd,
    build_nsys_cmd,
    build_shutdown_cmd,
    build_stats_cmd,
    check_capture,
    check_extra_args,
    check_label,
    graph_trace,
    output_names,
    split_label,
)
from tests.text_facts import mentions

REGISTER = ["-e", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]


def test_default_command_whole() -> None:
    assert build_nsys_cmd(Path("/run/nsys/run"), ["python", "-m", "x"]) == [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        *REGISTER,
        "--force-overwrite=true",
        "-o",
        "/run/nsys/run",
        "python",
        "-m",
        "x",
    ]


@pytest.mark.contract("B10")
def test_B10_gated_command_whole() -> None:
    command = build_nsys_cmd(
        "/run/nsys/run",
        ["./bench", "--size", "2048"],
        nvtx_capture="decode@LLM",
        trace=["cuda", "nvtx"],
        sample="process-tree",
        cpuctxsw="process-tree",
        capture="nvtx",
        capture_end="repeat:2",
        domain_include=["default", "LLM,x"],
        env={"TMPDIR": "/tmp"},
        session="mine",
        force_overwrite=False,
        extra_args=["--cuda-graph-trace=node"],
        executable="/opt/nsys",
    )
    assert command == [
        "/opt/nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=process-tree",
        "--cpuctxsw=process-tree",
        "--capture-range=nvtx",
        "--nvtx-capture=decode@LLM",
        "--capture-range-end=repeat:2",
        "--nvtx-domain-include=default,LLM\\,x",
        "-e",
        "NSYS_NVTX_PROFILER_REGISTER_ONLY=0,TMPDIR=/tmp",
        "--session-new=mine",
        "--force-overwrite=false",
        "-o",
        "/run/nsys/run",
        "--cuda-graph-trace=node",
        "./bench",
        "--size",
        "2048",
    ]


@pytest.mark.contract("B10")
@pytest.mark.parametrize("end", [None, ""])
@pytest.mark.contract("E8")
def test_B10_capture_range_end_is_passed_only_when_set(end: str | None) -> None:
    command = build_nsys_cmd("/o", ["w"], nvtx_capture="decode", capture_end=end)
    assert "--capture-range=nvtx" in command
    assert not [word for word in command if word.startswith("--capture-range-end")]


@pytest.mark.contract("B10")
def test_B10_no_gating_passes_no_nvtx_flag() -> None:
    # The call of the seed documents: the range stays in the configuration, the label says "none".
    command = build_nsys_cmd("/o", ["w"], nvtx_capture="none", capture="nvtx", capture_end="stop")
    assert not [word for word in command if word.startswith(("--capture-range", "--nvtx"))]


@pytest.mark.contract("B10")
@pytest.mark.parametrize("label", [None, ""])
@pytest.mark.contract("E8")
def test_B10_nvtx_without_a_label_is_an_error_that_names_the_key(label: str | None) -> None:
    with pytest.raises(ConfigError, match="nvtx_capture") as caught:
        build_nsys_cmd("/o", ["w"], nvtx_capture=label, capture="nvtx")
    assert caught.value.data["key"] == "pipeline.nsys.nvtx_capture"
    with pytest.raises(ConfigError):
        check_capture("nvtx", [], None)
    check_capture("nvtx", [], None, gating=False)


def test_cuda_profiler_api_needs_no_label() -> None:
    command = build_nsys_cmd("/o", ["w"], capture="cudaProfilerApi", capture_end="stop")
    assert command[5:7] == ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


@pytest.mark.contract("E7")
def test_E7_none_is_passed_and_leaving_out_is_possible() -> None:
    assert "--sample=none" in build_nsys_cmd("/o", ["w"])
    assert "--cpuctxsw=none" in build_nsys_cmd("/o", ["w"])
    assert not [word for word in build_nsys_cmd("/o", ["w"], sample=None) if word.startswith("--sample")]
    assert "--nvtx-domain-exclude=NCCL" in build_nsys_cmd("/o", ["w"], domain_exclude=["NCCL"])
    with pytest.raises(ConfigError) as caught:
        build_nsys_cmd("/o", ["w"], domain_include=["a"], domain_exclude=["b"])
    assert caught.value.data["key"] == "pipeline.nsys.nvtx_domain_include"
    assert mentions(caught.value.message, "nvtx_domain_include", "nvtx_domain_exclude")


def test_output_is_absolute_and_percent_signs_are_literal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = build_nsys_cmd("a%d/run", ["w"])
    assert command[command.index("-o") + 1] == f"{tmp_path}/a%%d/run"


def test_environment_that_nsys_cannot_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="comma"):
        build_nsys_cmd("/o", ["w"], env={"A": "1,2"})


@pytest.mark.contract("B10")
@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("decode*", "glob"),
        ("*", "glob"),
        ("*@LLM", "glob"),
        ("decode@LL*", "domain"),
        ("decode,prefill", "list"),
        ("regex:dec.*", "regular expression"),
        ("dec.*", "regular expression"),
        ("^decode", "regular expression"),
        ("decode$", "regular expression"),
        ("decode|prefill", "regular expression"),
        ("@LLM", "range"),
        ("", "range"),
        (" decode", "space"),
    ],
)
def test_B10_labels_nsys_can_never_match_are_refused(label: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        check_label(label)
    assert caught.value.hint and caught.value.data["key"] == "pipeline.nsys.nvtx_capture"


@pytest.mark.parametrize(
    "label",
    ["decode", "decode@LLM", "decode@*", "module:layers.0.mlp", "a b", "layers[0]", "a\\@b", "ü", "step?"],
)
def test_labels_nsys_can_match_are_accepted(label: str) -> None:
    check_label(label)
    assert f"--nvtx-capture={label}" in build_nsys_cmd("/o", ["w"], nvtx_capture=label)


@pytest.mark.parametrize(
    ("label", "parts"),
    [
        ("a", ("a", None)),
        ("a@b", ("a", "b")),
        ("a@b@c", ("a@b", "c")),
        ("a\\@b", ("a\\@b", None)),
        ("a@b\\@c", ("a", "b\\@c")),
        ("a@", ("a", "")),
    ],
)
def test_label_is_split_at_the_last_unescaped_at(label: str, parts: tuple[str, str | None]) -> None:
    assert split_label(label) == parts


@pytest.mark.parametrize("end", ["none", "stop", "stop-shutdown", "repeat", "repeat:3", "repeat-shutdown:2"])
def test_capture_range_end_values(end: str) -> None:
    check_capture("nvtx", ["decode"], end)


@pytest.mark.parametrize("end", ["bogus", "repeat:0", "repeat-shutdown", "stop "])
def test_capture_range_end_nonsense_names_the_key(end: str) -> None:
    with pytest.raises(ConfigError, match="capture_range_end"):
        check_capture("nvtx", ["decode"], end)
    with pytest.raises(ConfigError, match="capture_range="):
        check_capture("NVTX", ["decode"], None)


@pytest.mark.contract("B15")
def test_B15_several_labels_get_distinct_predictable_files() -> None:
    assert output_names(["decode"]) == {"decode": "run"}
    assert output_names(["prefill", "decode@LLM"]) == {
        "prefill": "run.prefill",
        "decode@LLM": "run.decode-LLM",
    }
    names = output_names(["a/b", "a b", "A-b", "@@"])
    assert names == {"a/b": "run.a-b", "a b": "run.a-b-2", "A-b": "run.A-b-3", "@@": "run.range"}


def test_extra_arguments_do_not_repeat_ours() -> None:
    check_extra_args(["--cuda-graph-trace=node", "value"], {"cuda-graph-trace"})
    for word in ("--trace=cuda", "-t", "-o", "--env-var=A=1", "--session-new=x", "--cpuctxsw=none"):
        with pytest.raises(ConfigError) as caught:
            check_extra_args([word])
        assert caught.value.data["key"] == "pipeline.nsys.extra_args" and mentions(caught.value.message, word)
    with pytest.raises(ConfigError) as caught:
        check_extra_args(["--no-such-flag=1"], {"cuda-graph-trace"})
    assert caught.value.data["key"] == "pipeline.nsys.extra_args"
    assert mentions(caught.value.message, "--no-such-flag")


def test_export_stats_and_shutdown_commands_whole() -> None:
    assert build_export_cmd(Path("/a,b/run.nsys-rep"), Path("/a,b/run.sqlite"), executable="/opt/nsys") == [
        "/opt/nsys",
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        "--output=/a,b/run.sqlite",
        "/a,b/run.nsys-rep",
    ]
    assert build_stats_cmd(Path("/a,b/run.sqlite"), ["nvtx_sum", "osrt_sum"]) == [
        "nsys",
        "stats",
        "--report",
        "nvtx_sum",
        "--report",
        "osrt_sum",
        "--format",
        "csv",
        "--force-overwrite",
        "true",
        "--output",
        "summary",
        "/a,b/run.sqlite",
    ]
    assert build_shutdown_cmd("mine") == ["nsys", "shutdown", "--kill", "sigkill", "--session=mine"]


def test_cuda_graphs_are_traced_by_node_where_nsys_can() -> None:
    assert graph_trace("node", {"trace", "cuda-graph-trace"}) == "node"
    assert graph_trace("node", {"trace", "sample"}) is None
    assert graph_trace("node", ()) == "node"  # not known: a plan on a machine without nsys
    assert graph_trace(None, {"cuda-graph-trace"}) is None
    assert "--cuda-graph-trace=node" in build_nsys_cmd("/o", ["w"], cuda_graph_trace="node")
    command = build_nsys_cmd("/o", ["w"], trace="nvtx,osrt", cuda_graph_trace="node")
    assert not [word for word in command if "graph" in word]
    assert (
        graph_trace("node", {"cuda-graph-trace"}, ["--cuda-graph-trace=graph"]) is None
    )  # given once already


def test_the_command_of_a_rank_is_the_same_for_all_of_them() -> None:
    first, second = (build_nsys_cmd(f"/50%/run.rank{rank}", ["w"], rank=rank) for rank in (0, 11))
    assert first == second
    assert first[first.index("-o") + 1] == "/50%%/run.rank%q{RANK}"
