"""Rows that only a real run proves: A2, A9, A11, B1, B5, B11, B12, C3, C5, C8."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from llm_perf_opt.cli import main
from llm_perf_opt.commands.run import parse_arguments
from llm_perf_opt.config.legacy import LEGACY_ROOTS
from llm_perf_opt.core.stage import StageConfig
from llm_perf_opt.runs.directory import NOTE, link_old_location
from llm_perf_opt.stages.ncu.stage import NcuStage
from llm_perf_opt.workloads.models.deepseek_ocr import DeepseekOcrAdapter
from tests.ncu_support import context
from tests.support import QUICK, cli, files_below, read_json

STATIC_ONLY = ("model=llama_tiny", "pipeline.torch_profiler.enable=false", "hardware.probe=false")
TEXT = (
    "model=llama_tiny",
    "infer.max_new_tokens=4",
    "infer.warmup_rounds=0",
    "run.repeats=1",
    "hardware.probe=false",
    "pipeline.torch_profiler.output.visualization.enable=false",
)
"""The smallest text workload."""


def configuration(run: Path) -> dict[str, object]:
    content: dict[str, object] = yaml.safe_load((run / "config.yaml").read_text())
    return content


# --- A2 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "chdir"),
    [("artifacts.runs_dir", "true"), ("hydra.run.dir", "true"), ("artifacts.runs_dir", "false")],
)
def test_A2_a_relative_directory_is_made_absolute_where_the_user_is(
    key: str, chdir: str, tmp_path: Path
) -> None:
    start = tmp_path / "from here"
    start.mkdir()
    done = cli("run", *STATIC_ONLY, f"{key}=../out/rel", f"hydra.job.chdir={chdir}", cwd=start)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "out" / "rel"
    assert (run / "report.md").is_file()
    assert list(start.iterdir()) == []
    assert not [path for path in run.rglob("*") if path.name in ("rel", "out")]
    assert configuration(run)["artifacts"] == {"runs_dir": str(run)}


def test_A2_relative_inputs_mean_the_users_directory_although_the_job_runs_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one two three\n")
    done = cli(
        "run", *TEXT, "pipeline.static_analysis.enable=false", "dataset.prompts_file=prompts.txt",
        "artifacts.runs_dir=runs/a", "hydra.job.chdir=true", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "a"
    assert configuration(run)["dataset"]["prompts_file"] == str(tmp_path / "prompts.txt")  # type: ignore[index]
    # The run directory appears once in every path that was written down.
    for path in read_json(run / "manifest.json")["stages"]["torch_profiler"]["artifacts"]:
        assert (run / path).is_file()
        assert "runs" not in Path(path).parts


# --- A9, A11 ---------------------------------------------------------------------------------------------

SUMMARY = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    '90.0,900,9,100.0,1,1,1,0,"void ns::Sobel<float, (int)2>(uchar4 *)"\n10.0,100,1,100.0,1,1,1,0,other(int)\n'
)


@pytest.mark.parametrize(
    "place",
    [
        "tmp/stage2/20251107-040000/nsys/run_cuda_gpu_kern_sum.csv",
        "tmp/20251107-040000/nsys/summary.csv",
        "stage2/nsys/run_gpukernsum.csv",
        "tmp/nsys/summary.csv",
    ],
)
def test_A9_ingest_finds_the_nsys_summary_of_an_earlier_release(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "20251107-040000"
    (run / place).parent.mkdir(parents=True)
    (run / place).write_text(SUMMARY)
    assert main(["ingest", "--nsys", str(run), "--out", str(tmp_path / "out")]) == 0
    notice = [line for line in capsys.readouterr().err.splitlines() if "earlier releases put it" in line]
    assert len(notice) == 1
    assert str(run / place) in notice[0]
    assert "llm-perf-opt migrate" in notice[0]
    kernels = read_json(tmp_path / "out" / "summary.json")["kernels"]
    assert {kernel["launches"] for kernel in kernels} == {9, 1}


def test_A9_a_summary_of_this_release_needs_no_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("nsys", "tmp/stage2/r/nsys"):
        (tmp_path / "r" / place).mkdir(parents=True)
        (tmp_path / "r" / place / "summary.csv").write_text(SUMMARY)
    assert main(["ingest", "--nsys", str(tmp_path / "r"), "--out", str(tmp_path / "out")]) == 0
    assert "earlier releases" not in capsys.readouterr().err


def test_A11_the_old_places_lead_to_the_last_run(tmp_path: Path) -> None:
    done = cli("run", *STATIC_ONLY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "tmp" / "runs").iterdir()
    assert (tmp_path / "tmp" / "stage1").is_symlink()
    assert (tmp_path / "tmp" / "stage1").resolve() == run.resolve()
    assert (tmp_path / "tmp" / "stage1" / "report.md").is_file()
    assert not (tmp_path / "tmp" / "stage2").exists()  # neither nsys nor ncu ran


def test_A11_old_runs_stay_and_a_note_names_the_new_place(tmp_path: Path) -> None:
    old = tmp_path / "tmp" / "stage2" / "20251107-040000"
    old.mkdir(parents=True)
    on, off = StageConfig(enable=True), StageConfig(enable=False)
    for name in ("a", "b"):
        run = tmp_path / "tmp" / "runs" / name
        run.mkdir(parents=True)
        link_old_location(run, {"static_analysis": on, "nsys": on, "ncu": off})
    assert old.is_dir()
    assert str(run) in (tmp_path / "tmp" / "stage2" / NOTE).read_text()
    assert (tmp_path / "tmp" / "stage1").readlink() == Path("runs/b")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link_old_location(elsewhere, {"static_analysis": on})  # chosen by the user: nobody looks for it in tmp/
    assert files_below(elsewhere) == []


# --- B1 --------------------------------------------------------------------------------------------------

PAGES = (
    "dataset.generated.pages=2",
    "dataset.generated.max_side=640",
    "pipeline.static_analysis.enable=false",
)


def test_B1_light_is_one_repeat_of_one_sample_and_a_plain_profile(tmp_path: Path) -> None:
    shapes = [
        f"pipeline.torch_profiler.{key}=true" for key in ("record_shapes", "with_stack", "profile_memory")
    ]
    done = cli(
        "run",
        *QUICK,
        *PAGES,
        *shapes,
        "run.repeats=3",
        "run.mode=light",
        "artifacts.runs_dir=r",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    timings = read_json(tmp_path / "r" / "torch_profiler" / "timings.json")
    assert [len(sample["repeats"]) for sample in timings["samples"]] == [1]
    options = read_json(tmp_path / "r" / "torch_profiler" / "profile.json")["options"]
    assert not options["record_shapes"] and not options["with_stack"]
    assert not (tmp_path / "r" / "torch_profiler" / "memory.json.gz").exists()
    assert read_json(tmp_path / "r" / "summary.json")["run"]["status"] == "ok"


def test_B1_every_key_of_run_has_its_effect_in_a_deep_run(tmp_path: Path) -> None:
    pages = tmp_path / "data" / "images"
    pages.mkdir(parents=True)
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (300, 200), "white").save(pages / name)
    (tmp_path / "two.txt").write_text("images/b.png\nimages/c.png\n")
    done = cli(
        "run", *QUICK, "dataset.root=data", "run.mode=deep", "run.device=cpu", "run.repeats=2",
        "run.dataset_subset_filelist=two.txt", "run.representative_max_new_tokens=2",
        "pipeline.torch_profiler.record_shapes=true", "pipeline.static_analysis.enable=false",
        "artifacts.runs_dir=r", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    timings = read_json(tmp_path / "r" / "torch_profiler" / "timings.json")
    assert [Path(sample["id"]).name for sample in timings["samples"]] == ["b.png", "c.png"]
    assert [len(sample["repeats"]) for sample in timings["samples"]] == [2, 2]
    assert {sample["new_tokens"] for sample in timings["samples"]} == {4}
    assert timings["engine"]["device"] == "cpu"
    profile = read_json(tmp_path / "r" / "torch_profiler" / "profile.json")
    assert profile["new_tokens"] == 2
    assert profile["options"]["record_shapes"] is True


@pytest.mark.parametrize("wanted", [1, 2])
def test_B1_top_n_kernels_is_how_many_kernels_ncu_looks_at(wanted: int, tmp_path: Path) -> None:
    (tmp_path / "run" / "nsys").mkdir(parents=True)
    (tmp_path / "run" / "nsys" / "summary.csv").write_text(SUMMARY)
    run = context(tmp_path / "run", "pipeline.workload.command=[/bin/true]", f"run.top_n_kernels={wanted}")
    assert NcuStage().plan(run)[0].startswith(f"cost  {wanted} kernels")


# --- B5 --------------------------------------------------------------------------------------------------

PLUG_IN = '''
from dataclasses import dataclass
from llm_perf_opt.core.stage import StageConfig, StageResult
from llm_perf_opt.stages.base import Stage


@dataclass
class Config(StageConfig):
    """Its keys."""


class Between(Stage):
    name, order, title, config_type = "between", 27, "a stage between ours", Config

    def check(self, context):
        return []

    def plan(self, context):
        return []

    def run(self, context):
        seen = context.artifacts.out_dir("between") / "before.txt"
        seen.write_text(" ".join(context.results))
        return StageResult("ok", artifacts=[seen])
'''


@pytest.fixture
def plugged_in(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which a package with one more stage is installed."""
    site = tmp_path / "site"
    (site / "between-1.0.dist-info").mkdir(parents=True)
    (site / "between.py").write_text(PLUG_IN)
    (site / "between-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: between\nVersion: 1.0\n"
    )
    points = "[llm_perf_opt.stages]\nbetween = between:Between\n"
    (site / "between-1.0.dist-info" / "entry_points.txt").write_text(points)
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_B5_the_orchestrator_runs_what_is_switched_on_in_order(
    tmp_path: Path, plugged_in: dict[str, str]
) -> None:
    absent = [f"pipeline.{tool}.executable=/nowhere/{tool}" for tool in ("nsys", "ncu")]
    on = [f"pipeline.{name}.enable=true" for name in ("between", "nsys", "ncu")]
    done = cli("run", *TEXT, *on, *absent, "artifacts.runs_dir=r", cwd=tmp_path, env=plugged_in)
    assert done.returncode == 0, done.stderr
    stages = read_json(tmp_path / "r" / "manifest.json")["stages"]
    assert {name: stage["status"] for name, stage in stages.items()} == {
        "static_analysis": "ok",
        "torch_profiler": "ok",
        "between": "ok",
        "nsys": "skipped",
        "ncu": "skipped",
    }
    assert list(stages) == ["static_analysis", "torch_profiler", "between", "nsys", "ncu"]
    # What it was handed says what had run by then; the log says when.
    assert (tmp_path / "r" / "between" / "before.txt").read_text() == "static_analysis torch_profiler"
    log = (tmp_path / "r" / "run.log").read_text()
    titles = [
        "static analysis: ok",
        "torch profiler: ok",
        "a stage between ours: ok",
        "Nsight Systems capture: skip",
    ]
    places = [log.index(title) for title in [*titles, "Nsight Compute counters: skip"]]
    assert places == sorted(places)


# --- B11, C5 ---------------------------------------------------------------------------------------------

OLD = {
    "device=cpu": "run.device",
    "repeats=2": "run.repeats",
    "analysis.static.enabled=false": "pipeline.static_analysis.enable",
    "outputs.save_predictions=true": "pipeline.torch_profiler.output.prediction.enable",
    "output.visualization.enable=false": "pipeline.torch_profiler.output.visualization.enable",
    "pipeline.ncu.set=full": "pipeline.ncu.ncu_cli.set",
}


@pytest.mark.contract("C5")
def test_B11_each_notice_is_reported_once_and_is_in_the_log_and_the_configuration_has_new_keys(
    tmp_path: Path,
) -> None:
    text = [word for word in TEXT if not word.startswith(("run.repeats", "pipeline."))]
    done = cli("run", *text, *OLD, "artifacts.runs_dir=r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "r" / "run.log").read_text()
    for override, new in OLD.items():
        notice = f"'{override.partition('=')[0]}' is deprecated: use '{new}'"
        assert done.stderr.count(notice) == 1, notice
        assert log.count(notice) == 1, notice
    found = configuration(tmp_path / "r")
    assert not LEGACY_ROOTS & set(found)
    assert "${" not in (tmp_path / "r" / "config.yaml").read_text()
    run, pipeline = found["run"], found["pipeline"]
    assert (run["device"], run["repeats"]) == ("cpu", 2)  # type: ignore[index]
    assert pipeline["static_analysis"]["enable"] is False  # type: ignore[index]
    assert pipeline["torch_profiler"]["output"]["prediction"]["enable"] is True  # type: ignore[index]
    assert pipeline["torch_profiler"]["output"]["visualization"]["enable"] is False  # type: ignore[index]
    assert pipeline["ncu"]["ncu_cli"]["set"] == "full"  # type: ignore[index]
    assert "set" not in pipeline["ncu"]  # type: ignore[index]
    assert (tmp_path / "r" / "torch_profiler" / "pred" / "predictions.jsonl").is_file()
    assert not (tmp_path / "r" / "static_analysis").exists()


@pytest.mark.parametrize(
    "arguments", [["--config-name", "runner/stage1.no-static"], ["runner@stage1_runner=stage1.no-static"]]
)
def test_B11_the_old_runner_configurations_name_what_to_use(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--plan", *arguments, "model=llama_tiny"]) == 0
    out, err = capsys.readouterr()
    assert err.count("is deprecated") == 1
    assert "pipeline.static_analysis.enable=false" in err
    assert "static_analysis" not in out


# --- B12, C8 ---------------------------------------------------------------------------------------------


def test_C8_two_dashes_change_nothing() -> None:
    plain = ["--plan", "run.repeats=2", "--json", "infer.batch_size=4"]
    for place in range(len(plain) + 1):
        assert parse_arguments([*plain[:place], "--", *plain[place:]]) == parse_arguments(plain)


@pytest.mark.contract("B12")
@pytest.mark.parametrize("task", ["stage1-run", "stage1-run-no-static", "stage2-profile", "direct-infer"])
def test_C8_pixi_tasks_take_overrides_after_two_dashes(
    task: str,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import json
    import tomllib

    from llm_perf_opt.runners import direct_inference_runner

    monkeypatch.chdir(tmp_path)
    arguments = tomllib.loads((repository / "pixi.toml").read_text())["tasks"][task].split()
    further = ["--", "--plan", "--json", "artifacts.runs_dir=mine"]
    run = direct_inference_runner.main if arguments[0] == "python" else main
    assert run([*(arguments[1:] if arguments[0] == "llm-perf-opt" else []), *further]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["run_dir"] == str(tmp_path / "mine")
    assert {stage["stage"] for stage in plan["stages"]} == {
        "stage1-run": {"static_analysis", "torch_profiler"},
        "stage1-run-no-static": {"torch_profiler"},
        "stage2-profile": {"nsys", "ncu"},
        "direct-infer": {"direct_inference"},
    }[task]


# --- C3 --------------------------------------------------------------------------------------------------

MARKED = "<|ref|>title<|/ref|><|det|>[[0, 0, 999, 499]]<|/det|>\n# Hi<｜end▁of▁sentence｜>"


def test_C3_the_models_output_options_have_their_effect_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's words are given, because random weights write no special tokens to strip."""

    def text(_: object, __: object, *, skip_special_tokens: bool = False) -> str:
        return "title[[0, 0, 999, 499]]\n# Hi" if skip_special_tokens else MARKED

    monkeypatch.setattr(DeepseekOcrAdapter, "text", text)
    monkeypatch.chdir(tmp_path)
    extra = "pipeline.torch_profiler.output.extra.deepseek_ocr"
    code = main(
        [
            "run", *QUICK, *PAGES, "pipeline.torch_profiler.output.prediction.enable=true",
            f"{extra}.prediction.strip_special_tokens=true", f"{extra}.visualization.max_images=1",
            f"{extra}.visualization.thumbnail_width=64", "artifacts.runs_dir=r", "-q",
        ]
    )  # fmt: skip
    assert code == 0
    from llm_perf_opt.workloads.outputs.writer import read_predictions

    stage = tmp_path / "r" / "torch_profiler"
    records = list(read_predictions(stage / "pred" / "predictions.jsonl"))
    assert len(records) == 2
    assert {record["raw_text"] for record in records} == {MARKED}
    assert not any(re.search(r"<[|｜]", record["text"]) for record in records)
    (image,) = (stage / "viz" / "images").iterdir()
    assert Image.open(image).width == 64
