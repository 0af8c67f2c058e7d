"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.commands import VERBS
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.codec import json_schema
from tests.support import QUICK, cli, files_below, imported_modules, read_json

HEAVY = {"torch", "transformers", "polars"}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real run of the default workload, as small as it gets, from a directory with an awkward name."""
    where = tmp_path_factory.mktemp("a b,c=d é")
    done = cli("run", *QUICK, cwd=where)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = list((where / "tmp" / "runs").iterdir())
    assert len(runs) == 1
    assert str(runs[0]) in done.stdout
    return runs[0]


@pytest.mark.contract("A1")
def test_A1_a_run_leaves_the_documented_files(quick_run: Path) -> None:
    present = set(files_below(quick_run))
    for name in (
        "report.md",
        "report.html",
        "stakeholder_summary.md",
        "kernels.md",
        "env.json",
        "config.yaml",
        "inputs.yaml",
        "summary.json",
        "manifest.json",
        "run.log",
    ):
        assert name in present, name
    assert "static_analysis/static_compute.json" in present
    assert "torch_profiler/trace.json.gz" in present
    assert "torch_profiler/operators.md" in present
    assert not (quick_run / "nsys").exists()
    assert not (quick_run / "ncu").exists()


@pytest.mark.contract("A2")
def test_A2_nothing_is_nested_and_paths_are_absolute(quick_run: Path) -> None:
    assert not list(quick_run.rglob(f"*/{quick_run.name}"))
    config = (quick_run / "config.yaml").read_text()
    assert f"runs_dir: {quick_run}" in config.replace("'", "")


def test_the_summary_matches_its_schema_and_notes_random_weights(quick_run: Path) -> None:
    import jsonschema

    summary = read_json(quick_run / "summary.json")
    jsonschema.validate(summary, json_schema(Summary))
    assert summary["workload"]["weights"] == "random"
    assert any("Random weights" in note for note in summary["notes"])
    assert summary["timings"]["decode_s"]["n"] >= 1
    assert {stage["status"] for stage in summary["stages"].values()} == {"ok"}
    assert summary["static"]["phases"]["decode"]["flops"] > 0


def test_inputs_yaml_names_the_samples_with_hashes(quick_run: Path) -> None:
    import yaml

    inputs = yaml.safe_load((quick_run / "inputs.yaml").read_text())
    assert inputs["count"] == 1
    assert len(inputs["samples"][0]["sha256"]) == 64


def test_env_json_holds_no_secret(tmp_path: Path) -> None:
    from llm_perf_opt.runs.provenance import environment

    os.environ["MY_API_TOKEN"] = "hunter2"
    try:
        assert "hunter2" not in json.dumps(environment())
    finally:
        del os.environ["MY_API_TOKEN"]


def test_report_renders_again_from_the_files_alone(quick_run: Path) -> None:
    before = (quick_run / "report.md").read_text()
    (quick_run / "report.md").unlink()
    assert main(["report", str(quick_run)]) == 0
    assert (quick_run / "report.md").read_text() == before
    assert main(["report", str(quick_run), "--reanalyse"]) == 0
    assert (quick_run / "report.md").read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["doctor"],
        ["run", "run.repeat=3"],
        ["run", "--plan"],
        ["report", "/nowhere"],
        ["ingest", "--help"],
    ],
)
def test_quick_verbs_import_no_heavy_library(arguments: list[str], tmp_path: Path) -> None:
    code = "import sys; from llm_perf_opt.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\nfound = sorted({'torch', 'transformers', 'polars'} & set(sys.modules))\nsys.exit(f'imported {found}' if found else 0)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_rendering_a_report_imports_no_torch(quick_run: Path) -> None:
    assert not HEAVY & imported_modules(["report", str(quick_run)])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = cli(verb, "--help")
    assert done.returncode == 0
    assert "usage" in done.stdout.lower()


def test_an_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "code", "expected"),
    [
        (["run.repeats=x"], 2, "run.repeats: 'x'"),
        (
            ["pipeline.nsys.enable=true", "pipeline.nsys.capture_range=nvtx", "pipeline.nsys.nvtx_capture="],
            2,
            "nvtx_capture",
        ),
        (["dataset.root=/nowhere/at/all"], 3, "/nowhere/at/all"),
        (["run.device=cuda:9"], 2, "run.device=cuda:9"),
        (["model=llama_tny"], 2, "llama_tny"),
        (["model.adapter=deepseek_orc"], 2, "deepseek_ocr"),
    ],
)
def test_a_users_mistake_writes_nothing_and_shows_no_traceback(
    overrides: list[str], code: int, expected: str, tmp_path: Path
) -> None:
    done = cli("run", *overrides, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert files_below(tmp_path) == []


def test_errors_are_json_for_scripts(tmp_path: Path) -> None:
    done = cli("run", "--json", "run.repeat=1", cwd=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["key"] == "run.repeat"


def test_plan_shows_commands_and_files_and_writes_nothing(tmp_path: Path) -> None:
    done = cli("run", "--plan", "--json", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [stage["stage"] for stage in plan["stages"]] == ["static_analysis", "torch_profiler"]
    assert all(stage["steps"] for stage in plan["stages"])
    assert files_below(tmp_path) == []


def test_hydra_switches_behave_as_hydra_users_expect(tmp_path: Path) -> None:
    done = cli("run", "--cfg", "job", "run.repeats=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "repeats: 5" in done.stdout
    (tmp_path / "mine" / "dataset").mkdir(parents=True)
    (tmp_path / "mine" / "dataset" / "ours.yaml").write_text(
        "adapter: omnidocbench\ngenerated:\n  pages: 2\n"
    )
    done = cli("run", "--config-dir", str(tmp_path / "mine"), "--cfg", "job", "dataset=ours", cwd=tmp_path)
    assert "pages: 2" in done.stdout
    done = cli(
        "-sc",
        "query=bash",
        env={"COMP_LINE": "llm-perf-opt run pipeline.nsys.ena", "COMP_POINT": "34"},
        cwd=tmp_path,
    )
    assert "pipeline.nsys.enable=" in done.stdout


def test_multirun_makes_one_run_per_combination(tmp_path: Path) -> None:
    done = cli(
        "run",
        "--multirun",
        "infer.max_new_tokens=2,3",
        "pipeline.torch_profiler.enable=false",
        *QUICK[1:],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summaries = sorted((tmp_path / "tmp" / "runs").rglob("summary.json"))
    assert [path.parent.name for path in summaries] == ["0", "1"]


def test_multirun_checks_every_job_before_the_first_starts(tmp_path: Path) -> None:
    done = cli("run", "--multirun", "infer.max_new_tokens=2,0", cwd=tmp_path)
    assert done.returncode == 2
    assert "infer.max_new_tokens=0" in done.stderr and "infer.max_new_tokens=2" not in done.stderr
    assert files_below(tmp_path) == []


def test_doctor_lists_what_will_run(tmp_path: Path) -> None:
    done = cli("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["stages"]["static_analysis"]["outlook"] == "runs"
    assert report["torch"]["version"]
    assert set(report["tools"]) == {"nsys", "ncu"}
    assert files_below(tmp_path) == []


@pytest.mark.contract("B6")
@pytest.mark.parametrize("module", ["llm_profile_runner", "deep_profile_runner"])
def test_B6_old_entry_points_give_one_notice_and_the_same_result(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"llm_perf_opt.runners.{module}", "--plan", *QUICK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("deprecated") == 1
    import importlib

    toggles = importlib.import_module(f"llm_perf_opt.runners.{module}").TOGGLES
    new = cli("run", "--plan", *toggles, *QUICK, cwd=tmp_path)
    strip = lambda text: [line for line in text.splitlines() if not line.startswith("run directory")]  # noqa: E731
    import re

    stamp = re.compile(r"\d{8}-\d{6}|llm-perf-opt-\w+|lpo-\w+")
    assert [stamp.sub("", line) for line in strip(done.stdout)] == [
        stamp.sub("", line) for line in strip(new.stdout)
    ]


def test_the_plan_of_a_sweep_writes_nothing(tmp_path: Path) -> None:
    done = cli("run", "--multirun", "--plan", "--json", "infer.max_new_tokens=2,3", *QUICK[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)
    assert [Path(plan["run_dir"]).name for plan in plans] == ["0", "1"]
    assert files_below(tmp_path) == []
    assert not (tmp_path / "tmp").exists()


def test_a_job_of_a_sweep_is_recorded_as_itself(tmp_path: Path) -> None:
    done = cli(
        "run",
        "--multirun",
        "-q",
        "model.name='a,b',c",
        "artifacts.runs_dir=sweep",
        "pipeline.torch_profiler.enable=false",
        "infer.mode=tiny",
        "hardware.probe=false",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "looking up" not in done.stderr  # quiet holds for a sweep as well
    manifests = [read_json(tmp_path / "sweep" / name / "manifest.json") for name in ("0", "1")]
    assert [manifest["facts"]["model"] for manifest in manifests] == ["a,b", "c"]
    names = [[word for word in m["command"] if word.startswith("model.name")] for m in manifests]
    assert names == [["model.name='a,b'"], ["model.name=c"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dataset.root=${oc.env:LLM_PERF_OPT_NO_SUCH}"], "LLM_PERF_OPT_NO_SUCH"),
        (["artifacts.runs_dir=${oc.env:LLM_PERF_OPT_NO_SUCH}"], "artifacts.runs_dir"),
        (["dataset.root='~no-such-user-here/x'"], "dataset.root"),
        (["infer=5"], "section"),
        (["=3"], "=3"),
        (["--multirun", "dataset.root=[1"], "[1"),
    ],
)
def test_overrides_that_cannot_be_meant_are_one_message(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    done = cli("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert "=null" not in done.stderr or "artifacts" not in done.stderr
    assert files_below(tmp_path) == []


def test_a_mistyped_switch_of_run_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    done = cli("run", "--pln", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    message, _, hint = done.stderr.partition("fix:")
    assert "'--pln'" in message and "--plan" in hint
    assert list(tmp_path.iterdir()) == []


def test_hydras_switches_may_be_in_any_order(tmp_path: Path) -> None:
    done = cli("run", "--cfg", "job", "--resolve", "run.repeats=9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "repeats: 9" in done.stdout


def test_ingest_leaves_nothing_behind_for_a_misspelt_device(tmp_path: Path) -> None:
    (tmp_path / "wall.json").write_text('{"samples": 1, "new_tokens": 2, "prefill_s": 0.1, "decode_s": 0.1}')
    done = cli("ingest", "--timings", "wall.json", "--device", "RTX 5900", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "NVIDIA GeForce RTX 5090" in done.stderr
    assert not (tmp_path / "out").exists()
