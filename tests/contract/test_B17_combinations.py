"""Every combination of the four stage toggles runs, small, with the real tools where they are installed.

nsys captures the workload for the first combination that has it, by itself, and for all four together. The rest are given
the report of the first again: what nsys watches is a process of its own, and the same in all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import SilentProgress
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.process.tools import find_tool
from llm_perf_opt.runs.execute import execute
from llm_perf_opt.runs.finish import finish_run
from tests.nsys_support import recording_nsys
from tests.support import files_below, read_json

STAGES = ("static_analysis", "torch_profiler", "nsys", "ncu")
SMALL = (
    "model=llama_tiny",
    "infer.max_new_tokens=2",
    "infer.warmup_rounds=0",
    "run.mode=light",
    "dataset.synthetic_tokens=8",
    "hardware.probe=false",
    "pipeline.nsys.gating_nvtx=false",
    "pipeline.nsys.timeout_s=120",
)


@pytest.fixture(scope="module")
def captured_once(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The override that makes nsys give its first capture again."""
    real = find_tool("nsys")
    if real is None:
        return []
    return [f"pipeline.nsys.executable={recording_nsys(tmp_path_factory.mktemp('nsys') / 'tool', real)}"]


@pytest.mark.contract("B2", "B17")
@pytest.mark.parametrize(
    "bits", range(16), ids=lambda bits: "+".join(s for n, s in enumerate(STAGES) if bits >> n & 1) or "none"
)
def test_B17_every_combination_of_toggles_runs(
    bits: int, tmp_path: Path, captured_once: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [name for number, name in enumerate(STAGES) if bits >> number & 1]
    toggles = [f"pipeline.{name}.enable={'true' if name in wanted else 'false'}" for name in STAGES]
    toggles += captured_once if wanted != [*STAGES] else []
    run = tmp_path / "run"
    config = compose_config([*SMALL, *toggles, f"artifacts.runs_dir={run}"], cwd=tmp_path)
    artifacts, command = Artifacts.for_run(run), ["llm-perf-opt", "run", *toggles]
    if not wanted:
        with pytest.raises(ConfigError, match="no stage is enabled"):
            execute(config, artifacts, SilentProgress(), command=command, overrides=(), resolved_yaml="")
        assert list(run.iterdir()) == []
        return
    outcome = execute(config, artifacts, SilentProgress(), command=command, overrides=(), resolved_yaml="")
    assert finish_run(outcome, quiet=True, as_json=False) == 0, outcome.manifest.stages
    stages = read_json(run / "summary.json")["stages"]
    assert list(stages) == wanted
    assert all(stage["status"] in ("ok", "degraded", "skipped") for stage in stages.values())
    assert all(stage["reason"] for stage in stages.values() if stage["status"] != "ok")
    folders = {path.name for path in run.iterdir() if path.is_dir()} - {"tmp"}
    assert folders == {name for name in wanted if stages[name]["status"] != "skipped"}
    for name in ("report.html", "report.md", "kernels.md", "env.json", "config.yaml"):
        assert (run / name).is_file()
    inputs = yaml.safe_load((run / "inputs.yaml").read_text())
    assert inputs.get("shapes") if wanted == ["static_analysis"] else inputs["count"] == 1
    manifest = read_json(run / "manifest.json")
    listed = {
        *manifest["files"],
        *(name for stage in manifest["stages"].values() for name in stage["artifacts"]),
    }
    assert listed == {name for name in files_below(run) if not name.startswith("tmp/")}
    assert str(run / "report.html") in capsys.readouterr().out
