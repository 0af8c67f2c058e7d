"""Every row of the contract has a test that names it, and row E5: one engine behind every way to run a model."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.support import QUICK, cli, read_json
from tests.warm import warm_server

ROWS = [
    f"{part}{number}"
    for part, last in (("A", 11), ("B", 19), ("C", 8), ("D", 6), ("E", 8))
    for number in range(1, last + 1)
]


@pytest.fixture(scope="module")
def rows_with_a_test(repository: Path) -> set[str]:
    named: set[str] = set()
    for path in (repository / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named.update(re.findall(r"^\s*def test_([A-E]\d+)_", text, re.MULTILINE))
        for marked in re.findall(r"^\s*@pytest\.mark\.contract\(([^)]*)\)", text, re.MULTILINE):
            named.update(re.findall(r'"([A-E]\d+)"', marked))
    return named


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_named_by_a_test(row: str, rows_with_a_test: set[str]) -> None:
    assert row in rows_with_a_test


def test_B19_the_run_directory_imports_from_the_path_of_the_specification(tmp_path: Path) -> None:
    from llm_perf_opt.core import artifacts as defined
    from llm_perf_opt.profiling.artifacts import Artifacts, create_stage2_root

    assert Artifacts is defined.Artifacts
    assert create_stage2_root is defined.create_stage2_root
    assert Artifacts.from_root(tmp_path).path("nsys/run") == tmp_path.resolve() / "nsys" / "run"


def test_B19_the_nsys_builder_takes_the_keywords_of_the_specification(tmp_path: Path) -> None:
    from llm_perf_opt.profiling.vendor.nsys import build_nsys_cmd

    expected = {"trace": "cuda,nvtx", "sample": "none", "capture": "nvtx", "capture_end": "stop"}
    gated = build_nsys_cmd(tmp_path / "run", ["work"], nvtx_capture="decode", **expected)
    assert {"--trace=cuda,nvtx", "--sample=none", "--capture-range=nvtx"} <= set(gated)
    assert {"--nvtx-capture=decode", "--capture-range-end=stop"} <= set(gated)
    assert gated[-1] == "work"
    whole = build_nsys_cmd(tmp_path / "run", ["work"], nvtx_capture="none", **expected)
    assert not [word for word in whole if "capture" in word]


def test_B19_the_ncu_builder_takes_the_keywords_of_the_specification(tmp_path: Path) -> None:
    from llm_perf_opt.profiling.vendor.ncu import build_ncu_cmd

    argv = build_ncu_cmd(
        tmp_path / "decode",
        ["work"],
        nvtx_expr="decode*",
        kernel_regex="gemm.*",
        csv_log=tmp_path / "raw.csv",
        use_nvtx=True,
        set_name="full",
        metrics=["a__b.sum", "c__d.sum"],
        sections=["Occupancy"],
        target_processes="application-only",
    )
    pairs = dict(itertools.pairwise(argv))
    assert pairs["--target-processes"] == "application-only"
    assert pairs["--nvtx-include"] == "regex:decode.*/"
    assert pairs["--kernel-name"] == "regex:gemm.*"
    assert pairs["--log-file"] == str(tmp_path / "raw.csv")
    assert (pairs["--set"], pairs["--section"], pairs["--metrics"]) == (
        "full",
        "Occupancy",
        "a__b.sum,c__d.sum",
    )
    assert pairs["--export"] == str(tmp_path / "decode")
    assert argv[-1] == "work"
    with pytest.raises(TypeError, match="no_such_option"):
        build_ncu_cmd(tmp_path / "decode", ["work"], no_such_option=1)


def _texts(folder: Path) -> list[tuple[str, str]]:
    import json

    lines = (folder / "pred" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [(record["id"], record["raw_text"]) for record in map(json.loads, lines)]


def test_E5_profiling_captures_and_direct_inference_share_one_engine(tmp_path: Path) -> None:
    """The same model, data and seed give the same answer whichever way it is run."""
    prediction = "pipeline.torch_profiler.output.prediction.enable=true"
    done = cli(
        "run",
        *QUICK,
        "pipeline.static_analysis.enable=false",
        "pipeline.direct_inference.enable=true",
        prediction,
        "artifacts.runs_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    arguments = [*QUICK, prediction, f"hydra.run.dir={tmp_path / 'inner'}"]
    inner = warm_server().run(arguments, tmp_path, module="llm_perf_opt.runs.workload", timeout_s=240)
    assert inner.returncode == 0, inner.stderr
    profiled, direct, captured = (
        _texts(folder)
        for folder in (
            tmp_path / "run" / "torch_profiler",
            tmp_path / "run" / "direct_inference",
            tmp_path / "inner" / "torch_profiler",
        )
    )
    assert profiled
    assert profiled[0][1]
    assert profiled == direct == captured
    timings = [
        read_json(folder / "timings.json")["samples"][0]
        for folder in (tmp_path / "run" / "direct_inference", tmp_path / "inner" / "torch_profiler")
    ]
    assert timings[0]["new_tokens"] == timings[1]["new_tokens"] == 4
