"""The program that captures watch: rows A5, C6, E1, E2, E6, B9."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.schema import (
    DatasetConfig,
    InferConfig,
    ModelConfig,
    RunConfig,
    RunMode,
    SamplingConfig,
)
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.stages.workload import (
    WORKLOAD_MODULE,
    build_work_argv,
    replay_lines,
    workload,
    workload_environment,
    workload_overrides,
)
from tests.nsys_support import app_config, stage_context, with_command


def test_argv_whole() -> None:
    argv = build_work_argv(
        "llm_perf_opt.runners.llm_profile_runner",
        ["pipeline.torch_profiler.enable=false"],
        hydra_run_dir="/runs/a b/tmp/workload",
        chdir=True,
        run_mode="deep",
    )
    assert argv == [
        sys.executable,
        "-m",
        "llm_perf_opt.runners.llm_profile_runner",
        "pipeline.torch_profiler.enable=false",
        "run.mode=deep",
        "artifacts.runs_dir='/runs/a b/tmp/workload'",
        "hydra.run.dir='/runs/a b/tmp/workload'",
        "hydra.job.chdir=true",
    ]
    assert build_work_argv("m", [], hydra_run_dir="/r", chdir=False)[-1] == "hydra.job.chdir=false"


@pytest.mark.contract("A5")
def test_A5_the_inner_workload_runs_in_tmp_workload(tmp_path: Path) -> None:
    context = stage_context(tmp_path / "run")
    found = workload(context.config, context.artifacts.root)
    assert found.cwd == tmp_path / "run" / "tmp" / "workload"
    assert found.argv[:3] == (sys.executable, "-m", WORKLOAD_MODULE)
    assert f"hydra.run.dir={tmp_path}/run/tmp/workload" in found.argv
    assert not (tmp_path / "run" / "tmp").exists()


def values(config: Any) -> dict[str, str]:
    return dict(line.lstrip("+").split("=", 1) for line in workload_overrides(config) if "=" in line)


@pytest.mark.contract("E1")
def test_E1_sampling_is_carried_as_plain_keys() -> None:
    sampling = SamplingConfig(num_epochs=2, num_samples_per_epoch=5, randomize=True, seed=9)
    found = values(app_config(dataset=DatasetConfig(sampling=sampling)))
    assert found["dataset.sampling.num_epochs"] == "2"
    assert found["dataset.sampling.num_samples_per_epoch"] == "5"
    assert found["dataset.sampling.randomize"] == "true"
    assert found["dataset.sampling.seed"] == "9"
    assert not [key for key in found if key.startswith("dataset/")]


@pytest.mark.contract("E2")
@pytest.mark.parametrize(("representative", "tokens"), [(None, "48"), (7, "7")])
def test_E2_decode_length(representative: int | None, tokens: str) -> None:
    config = app_config(
        infer=InferConfig(max_new_tokens=48), run=RunConfig(representative_max_new_tokens=representative)
    )
    assert values(config)["infer.max_new_tokens"] == tokens


@pytest.mark.contract("E6")
@pytest.mark.contract("E8")
def test_E6_model_inference_and_data_are_the_users(tmp_path: Path) -> None:
    config = app_config(
        model=ModelConfig(path="/weights/a, b", arch={"hidden_size": 64, "vision": {"depth": 2}}, seed=3),
        infer=InferConfig(prompt="<image>\nIt's $5, {ok}?", batch_size=2),
        dataset=DatasetConfig(
            root="/data/x y", subset_filelist="/data/list.txt", fallback_patterns=["*.tif"]
        ),
        run=RunConfig(repeats=5, threads=2, nvtx_modules=True),
        resolved_device="cuda:1",
    )
    lines = workload_overrides(config)
    for line in (
        "model.path='/weights/a, b'",
        "++model.arch.hidden_size=64",
        "++model.arch.vision.depth=2",
        "model.seed=3",
        "infer.prompt='<image>\nIt\\'s $5, {ok}?'",
        "infer.batch_size=2",
        "dataset.root='/data/x y'",
        "dataset.subset_filelist=/data/list.txt",
        "dataset.fallback_patterns=['*.tif']",
        "run.repeats=5",
        "run.threads=2",
        "run.nvtx_modules=true",
        "run.device='cuda:1'",
    ):
        assert line in lines


@pytest.mark.contract("C6")
def test_C6_other_profilers_are_off_and_outputs_stay_in_scratch(tmp_path: Path) -> None:
    from llm_perf_opt.config.compose import compose_config

    config = compose_config(
        [
            f"artifacts.runs_dir={tmp_path}",
            "pipeline.nsys.enable=true",
            "pipeline.torch_profiler.enable=true",
            "pipeline.torch_profiler.output.prediction.enable=true",
            "pipeline.torch_profiler.output.prediction.save_dir=/home/me/predictions",
        ]
    )
    found = values(config)
    assert {found[f"pipeline.{name}.enable"] for name in config.pipeline} == {"false"}
    assert found["pipeline.torch_profiler.output.prediction.enable"] == "true"
    assert found["pipeline.torch_profiler.output.prediction.save_dir"] == "pred"


@pytest.mark.contract("B9")
def test_B9_the_child_composes_to_the_same_workload(tmp_path: Path) -> None:
    """The whole way: a user's overrides → configuration → argument list → the child's configuration."""
    from llm_perf_opt.config.compose import compose_config

    folder = tmp_path / "my pages, 2024"
    folder.mkdir()
    outer = compose_config(
        [
            f"artifacts.runs_dir={tmp_path}",
            f"dataset.root='{folder}'",
            "infer.prompt='It\\'s, {here}: \"x\"=1'",
            "infer.max_new_tokens=9",
            "run.representative_max_new_tokens=4",
            "run.device=cpu",
            "run.mode=light",
            "dataset.sampling.num_samples_per_epoch=2",
            "pipeline.nsys.enable=true",
        ]
    )
    overrides = workload_overrides(outer)
    argv = build_work_argv(
        WORKLOAD_MODULE, overrides, hydra_run_dir=str(tmp_path), run_mode=outer.run.mode.value
    )
    inner = compose_config(argv[3:], cwd=tmp_path)
    assert inner.model == outer.model
    assert inner.dataset == outer.dataset
    assert inner.infer.prompt == 'It\'s, {here}: "x"=1'
    assert inner.infer == InferConfig(**{**vars(outer.infer), "max_new_tokens": 4})
    assert (inner.run.mode, inner.run.repeats) == (RunMode.light, outer.run.repeats)
    assert not any(stage.enable for stage in inner.pipeline.values())


def test_the_users_own_command_replaces_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    context = stage_context(tmp_path / "run", **with_command("python", "bench.py", "--size=2"))
    found = workload(context.config, context.artifacts.root)
    assert found.argv == ("python", "bench.py", "--size=2")
    assert found.cwd == tmp_path
    assert not found.built_in


def test_imports_of_the_starting_directory_work_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_adapter_module.py").write_text("VALUE = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = run_probe(
        [sys.executable, "-c", "import my_adapter_module; print(my_adapter_module.VALUE)"],
        cwd=elsewhere,
        env=workload_environment(),
    )
    assert result.stdout.strip() == "5"


def test_replay_lines_run_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "it's a dir"
    folder.mkdir()
    code = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['MARK'])"
    arguments = [sys.executable, "-c", code, "a b", "$HOME", "it's", "x" * 100]
    text = replay_lines(arguments, cwd=folder, env={"MARK": "1 2"})
    result = run_probe(["sh", "-c", text])
    assert result.stdout.strip() == f"{folder} {arguments[3:]!r} 1 2"
