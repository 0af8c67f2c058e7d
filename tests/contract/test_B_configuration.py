"""Contract B: one configuration, one orchestrator."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.config.legacy import LEGACY_KEYS, translate_config
from llm_perf_opt.config.schema import AppConfig, RunMode
from llm_perf_opt.config.store import schema_node
from llm_perf_opt.core.console import logs
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.stage import stage_types
from llm_perf_opt.runs.app import prepare
from llm_perf_opt.stages.base import enabled_stages

STAGES = ("static_analysis", "torch_profiler", "nsys", "ncu")


def compose(*overrides: str) -> AppConfig:
    raw = compose_raw(overrides)
    return typed_config(raw, overrides)


def test_B1_config_yaml_is_the_only_entry_and_has_the_run_keys() -> None:
    entry = yaml.safe_load((CONF_DIR / "config.yaml").read_text())
    assert {
        "mode",
        "device",
        "repeats",
        "dataset_subset_filelist",
        "top_n_kernels",
        "representative_max_new_tokens",
    } <= set(entry["run"])
    assert [p.name for p in CONF_DIR.glob("*.yaml")] == ["config.yaml"]


@pytest.mark.parametrize("mode", ["deep", "light"])
def test_B1_mode_is_deep_or_light(mode: str) -> None:
    assert compose(f"run.mode={mode}").run.mode is RunMode(mode)


def test_B1_another_mode_is_refused_and_the_choices_are_named() -> None:
    with pytest.raises(ConfigError, match=r"run.mode.*deep.*light"):
        compose("run.mode=medium")


@pytest.mark.parametrize("bits", range(16))
def test_B2_all_sixteen_toggle_combinations(bits: int) -> None:
    wanted = [name for index, name in enumerate(STAGES) if bits >> index & 1]
    config = compose(*(f"pipeline.{name}.enable={'true' if name in wanted else 'false'}" for name in STAGES))
    assert [stage.name for stage in enabled_stages(config)] == wanted


@pytest.mark.parametrize(
    ("mount", "preset"),
    [
        ("profiling/torch@pipeline.torch_profiler", "torch-profiler.default"),
        ("profiling/nsys@pipeline.nsys", "nsys.default"),
        ("profiling/ncu@pipeline.ncu", "ncu.default"),
        ("output/torch@pipeline.torch_profiler.output", "default"),
        ("model/deepseek_ocr/output/torch@pipeline.torch_profiler.output.extra.deepseek_ocr", "default"),
    ],
)
def test_B3_presets_mount_where_the_seeds_mount_them(mount: str, preset: str) -> None:
    defaults = yaml.safe_load((CONF_DIR / "config.yaml").read_text())["defaults"]
    assert {mount: preset} in defaults
    assert (CONF_DIR / mount.split("@")[0] / f"{preset}.yaml").is_file()


@pytest.mark.parametrize("preset", ["torch-profiler.min", "torch-profiler.max"])
def test_B3_a_preset_can_be_chosen_on_the_command_line(preset: str) -> None:
    chosen, default = compose(f"profiling/torch@pipeline.torch_profiler={preset}"), compose()
    assert chosen.pipeline["torch_profiler"] != default.pipeline["torch_profiler"]


def test_B5_stages_run_in_the_order_of_the_pipeline() -> None:
    names = list(stage_types())
    assert [n for n in names if n in STAGES] == list(STAGES)


@pytest.mark.parametrize("name", ["default", "stage1.default", "stage1.no-static", "stage2"])
def test_B7_old_runner_names_still_compose(name: str) -> None:
    raw = compose_raw((), config_name=f"runner/{name}")
    config = typed_config(raw)
    assert config.pipeline["nsys"].enable is (name == "stage2")
    assert config.pipeline["static_analysis"].enable is (name in ("default", "stage1.default"))


def test_B7_the_old_runner_group_override_is_translated() -> None:
    config = compose("runner@stage1_runner=stage1.no-static")
    assert config.pipeline["static_analysis"].enable is False


OLD_VALUES = {
    "device": ("cpu", "run.device", "cpu"),
    "repeats": ("7", "run.repeats", 7),
    "run.stage1_repeats": ("2", "dataset.sampling.num_samples_per_epoch", 2),
    "analysis.static.enabled": ("false", "pipeline.static_analysis.enable", False),
    "analysis.static.write_reports": ("false", "pipeline.static_analysis.write_reports", False),
    "runners.analysis.static.enabled": ("false", "pipeline.static_analysis.enable", False),
    "runners.analysis.static.use_synthetic_inputs": (
        "false",
        "pipeline.static_analysis.use_synthetic_inputs",
        False,
    ),
    "torch_profiler.enabled": ("false", "pipeline.torch_profiler.enable", False),
    "torch_profiler.record_shapes": ("true", "pipeline.torch_profiler.record_shapes", True),
    "outputs.save_predictions": ("true", "pipeline.torch_profiler.output.prediction.enable", True),
    "outputs.visualization.enable": ("false", "pipeline.torch_profiler.output.visualization.enable", False),
    "outputs.predictions.strip_special_tokens": (
        "true",
        "pipeline.torch_profiler.output.extra.deepseek_ocr.prediction.strip_special_tokens",
        True,
    ),
    "outputs.visualization.max_images": (
        "3",
        "pipeline.torch_profiler.output.extra.deepseek_ocr.visualization.max_images",
        3,
    ),
    "outputs.visualization.thumbnail_width": (
        "99",
        "pipeline.torch_profiler.output.extra.deepseek_ocr.visualization.thumbnail_width",
        99,
    ),
    "output.prediction.save_dir": ("preds", "pipeline.torch_profiler.output.prediction.save_dir", "preds"),
    "pipeline.ncu.nvtx_include": ("prefill/", "pipeline.ncu.ncu_cli.nvtx.include", "prefill/"),
    "pipeline.ncu.set": ("full", "pipeline.ncu.ncu_cli.set", "full"),
    "pipeline.ncu.metrics": ("'a,b'", "pipeline.ncu.ncu_cli.metrics", ["a", "b"]),
    "pipeline.ncu.sections": ("[SpeedOfLight]", "pipeline.ncu.ncu_cli.sections", ["SpeedOfLight"]),
    "pipeline.ncu.target_processes": (
        "application-only",
        "pipeline.ncu.ncu_cli.target_processes",
        "application-only",
    ),
}


def select(config: AppConfig, key: str) -> object:
    node: object = config
    for part in key.split("."):
        node = node[part] if isinstance(node, dict) else getattr(node, part)
    return node


@pytest.mark.contract("C5")
@pytest.mark.parametrize("old", OLD_VALUES)
def test_B11_each_old_key_works_with_one_info(old: str, caplog: pytest.LogCaptureFixture) -> None:
    value, new, expected = OLD_VALUES[old]
    logging.getLogger("llm_perf_opt").propagate = True
    once = logs._Once()  # as the console and run.log have it: a command composes more than once
    caplog.handler.addFilter(once)
    try:
        with caplog.at_level("INFO", logger="llm_perf_opt"):
            config = compose(f"{old}={value}")
    finally:
        caplog.handler.removeFilter(once)
    assert select(config, new) == expected
    notices = [r.getMessage() for r in caplog.records if "deprecated" in r.getMessage()]
    assert len(notices) == 1
    assert f"'{old}'" in notices[0]
    assert f"'{new}'" in notices[0]


def test_B11_every_entry_of_the_table_points_at_a_key_that_exists() -> None:
    schema = schema_node()
    for entry in LEGACY_KEYS:
        if ".extra." in entry.new:
            continue  # free-form: checked by the adapter
        parent, _, last = entry.new.rpartition(".")
        node = OmegaConf.select(schema, parent)
        assert node is not None, entry.new
        assert last in node, entry.new


def test_B11_a_new_key_wins_over_an_old_one() -> None:
    assert compose("repeats=7", "run.repeats=5").run.repeats == 5


def test_B11_old_keys_in_a_users_yaml_are_translated(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "old.yaml").write_text(
        "# @package _global_\nrepeats: 9\noutputs:\n  save_predictions: true\n"
    )
    raw = compose_raw(["+mine=old"], config_dir=tmp_path)
    config = typed_config(raw)
    assert config.run.repeats == 9
    assert config.pipeline["torch_profiler"].output.prediction.enable is True  # type: ignore[attr-defined]


def test_B11_translation_leaves_a_modern_config_alone() -> None:
    raw = compose_raw(())
    before = OmegaConf.to_yaml(raw)
    assert translate_config(raw) == []
    assert OmegaConf.to_yaml(raw) == before


def test_B12_pixi_tasks_call_the_orchestrator(repository: Path) -> None:
    text = (repository / "pixi.toml").read_text()
    for task in ("stage1-run", "stage1-run-no-static", "stage2-profile", "direct-infer"):
        assert f"\n{task} = " in text
    import tomllib

    tasks = tomllib.loads(text)["tasks"]
    for task in ("stage1-run", "stage1-run-no-static", "stage2-profile"):
        overrides = tasks[task].removeprefix("llm-perf-opt run ").split()
        compose(*overrides)
    assert "direct_inference_runner" in tasks["direct-infer"]


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("run.repeat=3", "'run.repeat'", "run.repeats"),
        (
            "pipeline.nsys.enabled=true",
            "'pipeline.nsys.enabled'",
            "pipeline.nsys.enable",
        ),
        (
            "pipline.nsys.enable=true",
            "'pipline.nsys.enable'",
            "pipeline.nsys.enable",
        ),
        ("infer.max_new_tokens=2.5", "'2.5'", None),
        ("infer.max_new_tokens=0", "infer.max_new_tokens=0", "at least 1"),
        ("infer.max_new_tokens=many", "'many'", None),
        ("run.repeats=0", "run.repeats=0", "at least 1"),
        ("infer.batch_size=null", "infer.batch_size", None),
        ("run.max_measure_s=0", "run.max_measure_s=0.0", "more than 0"),
        ("run.target_interval_ratio=-1", "run.target_interval_ratio=-1.0", "more than 0"),
        ("pipeline.nsys.enable=maybe", "'maybe'", None),
        ("model.dtype=float12", "model.dtype", None),
        ("model.weights=real", "model.weights=real", "model.path"),
        ("run.device=tpu", "run.device=tpu", "cuda:N"),
        ("run.device=cuda:63", "run.device=cuda:63", "run.device=cpu"),
        ("infer.base_size=1000", "infer.base_size=1000", "multiple of 64"),
        ("dataset=omnidocbanch", "omnidocbanch", None),
        (
            "pipeline.workload.command=[]",
            "pipeline.workload.command",
            "'pipeline.workload.command=[python,bench.py]'",
        ),
        ("bogus", "bogus", None),
    ],
)
def test_a_users_mistake_names_the_key_and_the_nearest_valid_one(
    override: str, message: str, hint: str | None
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(override)
    assert message in caught.value.message
    assert caught.value.data.get("key") == (override.partition("=")[0] if "=" in override else None)
    if hint is not None:
        assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_relative_paths_are_made_absolute_where_the_user_is(tmp_path: Path) -> None:
    overrides = ["dataset.subset_filelist=lists/a.txt", "run.dataset_subset_filelist=lists/b.txt"]
    raw = compose_raw(overrides)
    config = typed_config(raw, overrides, cwd=tmp_path)
    assert config.dataset.subset_filelist == str(tmp_path / "lists" / "b.txt")


def test_limits_of_a_gpu_are_not_applied_to_a_run_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match=r"hardware\.device='RTX 5090'") as caught:
        prepare(["run.device=cpu", "hardware.device=RTX 5090"], config_dir=None, config_name="config")
    assert caught.value.data["key"] == "hardware.device"
    assert "pipeline.torch_profiler.enable=false" in (caught.value.hint or "")
    static_only = prepare(
        ["run.device=cpu", "hardware.device=RTX 5090", "pipeline.torch_profiler.enable=false"],
        config_dir=None,
        config_name="config",
    )
    assert static_only.config.hardware.device == "RTX 5090"


@pytest.mark.parametrize(
    ("override", "complaint", "fix"),
    [
        ("pipeline=x", "pipeline='x'", "pipeline.KEY=VALUE"),
        ("pipeline=null", "pipeline=null", "pipeline.KEY=VALUE"),
        ("pipeline.nsys=5", "pipeline.nsys=5", "pipeline.nsys.KEY=VALUE"),
        ("model=null", "model=null", "llama_tiny"),
        ("model=3", "model=3", "llama_tiny"),
        ("model=", "model=", "llama_tiny"),
        ("dataset=3.5", "dataset=3.5", "omnidocbench"),
        (
            "model=deepseek_ocrr",
            "model=deepseek_ocrr",
            "model=deepseek_ocr?",
        ),
        ("foo", "'foo'", "key=value"),
    ],
)
def test_whole_sections_and_presets_that_cannot_be_meant(override: str, complaint: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(override)
    assert complaint in caught.value.message
    assert caught.value.data.get("key") == (override.partition("=")[0] if "=" in override else None)
    assert fix in (caught.value.hint or "")
