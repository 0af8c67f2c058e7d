"""Jobs of a sweep that share their presets are composed to what Hydra itself composes, errors included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.config.compose import config_hash
from llm_perf_opt.config.hydra_bridge import compose as module
from llm_perf_opt.config.hydra_bridge.compose import SharedComposition, compose_raw
from llm_perf_opt.core.errors import ConfigError

JOBS = [
    ["model=llama_tiny", "infer.batch_size=1", "infer.max_new_tokens=2"],
    ["model=llama_tiny", "infer.batch_size=2", "infer.max_new_tokens=2"],
    ["infer.batch_size=2", "model=llama_tiny", "infer.max_new_tokens=2"],
    ["model=qwen_moe_tiny", "infer.batch_size=2", "pipeline.torch_profiler.enable=false"],
    ["model=llama_tiny", "pipeline.workload.command=[python,-c,'print(1, 2)']", "hydra.sweep.dir=some/where"],
    ["model=llama_tiny", "run.env={A: 1, B: two}", "run.env.C=3"],
    ["+run.env.A=${oc.env:HOME}", "++run.env.B=2", "run.sinks=[]"],
    [
        "model=llama_tiny",
        "model.path='a b=c,d'",
        "hydra/launcher=basic",
        "hydra.sweep.subdir=x-${hydra.job.num}",
    ],
]


def plain(raw: DictConfig) -> object:
    return OmegaConf.to_container(raw, resolve=False)


@pytest.fixture
def shared() -> SharedComposition:
    return SharedComposition(config_dir=None, config_name="config")


def test_every_job_is_what_hydra_composes(shared: SharedComposition) -> None:
    for job in [*JOBS, *JOBS]:  # the second time from what is kept
        ours = shared.compose(job)
        theirs = compose_raw(job)
        assert plain(ours) == plain(theirs), job
        assert config_hash(ours, job) == config_hash(theirs, job)


def test_one_job_leaves_nothing_behind_in_the_next(shared: SharedComposition) -> None:
    first = shared.compose(["infer.batch_size=7", "run.env={A: 1}"])
    assert HydraConfig.get().overrides.task == ["infer.batch_size=7", "run.env={A: 1}"]
    second = shared.compose(["infer.max_new_tokens=3"])
    assert first.infer.batch_size == 7
    assert plain(second) == plain(compose_raw(["infer.max_new_tokens=3"]))


def test_presets_are_composed_once_for_all_values(
    shared: SharedComposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        module, "compose_raw", lambda key, **kw: (composed.append(tuple(key)), compose_raw(key, **kw))[1]
    )
    for size in range(1, 6):
        shared.compose(["model=llama_tiny", f"infer.batch_size={size}"])
    assert composed == [("model=llama_tiny",)]


def test_a_users_own_presets_are_found(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "own.yaml").write_text("# @package _global_\ninfer:\n  max_new_tokens: 5\n")
    job = ["+site=own", "infer.batch_size=3"]
    ours = SharedComposition(config_dir=tmp_path, config_name="config").compose(job)
    assert (ours.infer.max_new_tokens, ours.infer.batch_size) == (5, 3)
    assert plain(ours) == plain(compose_raw(job, config_dir=tmp_path))


@pytest.mark.parametrize(
    "job",
    [
        ["infer.batch_sise=1"],
        ["infer.batch_size=many"],
        ["model=nope"],
        ["model=null"],
        ["=3"],
        ["infer.batch_size=[1"],
        ["infer=3"],
        ["hydra.callbacks.x._target_=os.system"],
    ],
)
def test_mistakes_have_the_same_messages(shared: SharedComposition, job: list[str]) -> None:
    assert outcome(shared.compose, job) == outcome(compose_raw, job)


def outcome(compose: Callable[[list[str]], DictConfig], job: list[str]) -> object:
    """What comes of a job: its configuration, or the error. Some mistakes are only found when keys are checked."""
    try:
        return config_hash(compose(job), job)
    except ConfigError as error:
        return str(error)
