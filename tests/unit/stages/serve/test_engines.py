"""Engines: the suite that ships, and what each does in its own way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_perf_opt.captures.serving import OWN_STEPS
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.stages.serve import transformers_steps
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig
from llm_perf_opt.stages.serve.engines import (
    PLUGIN,
    STEPS_VARIABLE,
    ServerSettings,
    VllmEngine,
    has_counted_model,
    make_engine,
    merge_options,
)
from llm_perf_opt.stages.serve.transformers_steps import StepFile, StepRecorder
from llm_perf_opt.testing.engines import EngineConformance


class TestTransformers(EngineConformance):
    engine = EngineName.transformers


class TestVllm(EngineConformance):
    engine = EngineName.vllm


class TestSglang(EngineConformance):
    engine = EngineName.sglang


class TestTrtllm(EngineConformance):
    engine = EngineName.trtllm


class TestAttach(EngineConformance):
    engine = EngineName.attach


def test_the_cache_of_transformers_is_bounded_and_large_enough() -> None:
    engine = make_engine(ServeConfig())
    command = engine.command(ServerSettings("x", 1, max_tokens=4096, most_in_flight=32))
    blocks = int(command[command.index("--cb-num-blocks") + 1])
    size = int(command[command.index("--cb-block-size") + 1])
    assert "--continuous-batching" in command
    assert blocks * size >= 32 * 4096
    assert blocks < 100_000


def test_the_vllm_plug_in_is_on_the_path_of_observed_servers_only(tmp_path: Path) -> None:
    engine = VllmEngine(ServeConfig(engine=EngineName.vllm))
    watched = engine.environment(ServerSettings("x", 1, steps_file=tmp_path / "steps.jsonl"))
    assert watched["PYTHONPATH"].split(os.pathsep)[0] == str(PLUGIN)
    assert watched[STEPS_VARIABLE] == str(tmp_path / "steps.jsonl")
    unwatched = engine.environment(ServerSettings("x", 1))
    assert str(PLUGIN) not in unwatched.get("PYTHONPATH", "")
    assert STEPS_VARIABLE not in unwatched
    found = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import entry_points; print([e.name for e in entry_points(group='vllm.stat_logger_plugins')])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "llm_perf_opt" not in found.stdout


@pytest.mark.parametrize(
    ("engine", "args", "same"),
    [
        ("vllm", "", True),
        ("vllm", "--max_num_seqs 4 --no-enable-prefix-caching --tensor-parallel-size=1", True),
        ("vllm", "--tensor_parallel_size 2", False),
        ("vllm", "-tp 2", False),
        ("vllm", "-q fp8", False),
        ("vllm", "--kv_cache_dtype=fp8", False),
        ("vllm", "--cpu-offload-gb 4", False),
        ("sglang", "--tp 2", False),
        ("sglang", "--speculative-algorithm EAGLE", False),
        ("trtllm", "--tp_size 2", False),
        ("attach", "", False),
    ],
)
def test_floors_need_a_server_with_the_counted_model(engine: str, args: str, same: bool) -> None:
    config = ServeConfig(engine=EngineName(engine), args=args.split())
    assert has_counted_model(config, ServerSettings("x", 1), own_checkpoint=True) is same


def test_the_data_type_of_a_given_checkpoint_is_not_known() -> None:
    config = ServeConfig(engine=EngineName.transformers)
    assert not has_counted_model(config, ServerSettings("x", 1), own_checkpoint=False)
    assert not has_counted_model(config, ServerSettings("x", 1, device="cuda"), own_checkpoint=True)
    assert has_counted_model(config, ServerSettings("x", 1, dtype="float32"), own_checkpoint=False)


def test_one_option_has_several_spellings() -> None:
    assert merge_options(["--max_num_seqs", "4"], ["--max-num-seqs=8"]) == ["--max-num-seqs=8"]


@pytest.mark.parametrize(("text", "gib"), [("4", 4), ("0", 1 << 20), ("40.5", 1 << 20), ("²", 1 << 20)])
def test_a_cache_of_unknown_size_counts_as_larger_than_any_memory(text: str, gib: int) -> None:
    config = ServeConfig(engine=EngineName.vllm, env={"VLLM_CPU_KVCACHE_SPACE": text})
    assert VllmEngine(config).cache_bytes == gib << 30


def test_the_version_is_read_from_a_vllm_log() -> None:
    engine = VllmEngine(ServeConfig(engine=EngineName.vllm))
    assert engine.version("INFO 11-17 vLLM API server version 0.32.0\nnoise\n") == "0.32.0"


FAKE_VLLM = """
class StatLoggerBase:
    pass
"""
DRIVER = """
import sys, time
from importlib.metadata import entry_points
from types import SimpleNamespace as N
(point,) = entry_points(group="vllm.stat_logger_plugins")
logger = point.load()(None, 0)
def step(k, finished=()):
    return (
        N(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.25, iteration_details=N(
            iteration_index=k, num_ctx_requests=int(k == 0), num_ctx_tokens=16 * (k == 0), num_generation_requests=2,
            num_generation_tokens=2, elapsed_ms=5.0, is_dummy=False)),
        N(iteration_timestamp=1e9 + 0.006 * k, num_generation_tokens=2, num_preempted_reqs=0,
          prompt_token_stats=N(computed=16, cached_tokens=4, total=20), time_to_first_tokens_iter=[0.01] if k == 0 else [],
          finished_requests=list(finished)))
"""


def drive(tmp_path: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code with the plug-in as vLLM would load it; vLLM itself is a stub."""
    package = tmp_path / "site" / "vllm" / "v1" / "metrics"
    package.mkdir(parents=True, exist_ok=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "loggers.py").write_text(FAKE_VLLM)
    steps = tmp_path / "steps.jsonl"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(tmp_path / "site")]), STEPS_VARIABLE: str(steps), **env,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", DRIVER + code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


def test_the_plug_in_writes_steps_that_the_reader_understands(tmp_path: Path) -> None:
    done = drive(
        tmp_path,
        """
end = N(request_id="cmpl-load0-3-0", e2e_latency=0.5, num_prompt_tokens=20, num_generation_tokens=8, num_cached_tokens=4,
        num_preemptions=0, queued_time=0.1, prefill_time=0.05, decode_time=0.3, inference_time=0.35, finish_reason=None)
for k in range(10):
    logger.record(*step(k, [end] if k == 9 else ()), None, 0)
logger.record(None, None)
logger.record(scheduler_stats=step(0)[0], iteration_stats=None, mm_cache_stats=None, engine_idx=0, future_argument=1)
logger._writer.close()
""",
    )
    assert done.returncode == 0, done.stderr
    records = read_serving([tmp_path / "steps.jsonl"])
    (steps,) = records.steps
    assert len(steps) == 11
    assert steps.prefill_tokens.sum() == 32
    assert steps.finished.id == ["cmpl-load0-3-0"]
    assert steps.finished.queue_s[0] == 0.1
    assert not (tmp_path / "steps.jsonl.log").exists()


@pytest.mark.parametrize(
    ("code", "env", "expected"),
    [
        ("logger.record(N(iteration_details=7), N(finished_requests=3))", {}, "TypeError"),
        ("logger.record(*step(0)); time.sleep(0.5); logger.record(*step(1))", {STEPS_VARIABLE: "/proc/nowhere/steps.jsonl"}, None),
        ("[logger.record(*step(k)) for k in range(200)]; time.sleep(0.5)", {"LLM_PERF_OPT_VLLM_STEPS_BYTES": "500"}, "reached 500 bytes"),
        ("logger._writer._most_queued = 5\n[logger.record(*step(k)) for k in range(100)]\nlogger._writer.close()", {}, "steps were dropped"),
    ],
)  # fmt: skip
def test_nothing_in_the_plug_in_can_stop_a_server(
    code: str, env: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    done = drive(tmp_path, f"{code}\nprint('server goes on')", **env)
    assert done.returncode == 0, done.stderr
    assert "server goes on" in done.stdout
    assert done.stderr == ""
    if expected is not None:
        assert expected in (tmp_path / "steps.jsonl.log").read_text()


def test_without_its_variable_the_plug_in_records_nothing(tmp_path: Path) -> None:
    done = drive(tmp_path, "logger.record(*step(0)); print(logger._writer)", **{STEPS_VARIABLE: ""})
    assert done.stdout.strip() == "None"


def test_the_plug_in_costs_the_step_little(tmp_path: Path) -> None:
    """Under 1 % of a step of 10 ms: processor time of the server's thread, which other processes do not change."""
    done = drive(
        tmp_path,
        """
import json, statistics
costs = []
for k in range(2000):
    made = step(k)
    began = time.thread_time()
    logger.record(*made, None, 0)
    costs.append(time.thread_time() - began)
print(json.dumps({"median": statistics.median(costs)}))
""",
    )
    assert json.loads(done.stdout)["median"] < 100e-6


@pytest.mark.needs("serving")
def test_the_client_measures_itself(tmp_path: Path) -> None:
    from llm_perf_opt.stages.serve.certify import certify_client

    found = certify_client(tmp_path, seconds=0.3)
    assert found.capacity_per_s > 0
    assert 0 < found.event_s < 1e-3  # processor time, which other programs do not change
    assert found.stamp_error_p99_s is not None and found.stamp_error_p99_s >= 0


class _State:
    """A request as continuous batching of transformers has it."""

    def __init__(self, name: str, created: float) -> None:
        self.request_id, self.created_time, self.lifespan, self.tokens = (
            name,
            created,
            (created + 0.25, -1.0),
            0,
        )

    def generated_len(self) -> int:
        return self.tokens


def _loop(recorder: StepRecorder, end: float, duration: float, batch: list[tuple[_State, int, bool]]) -> None:
    recorder.began(end - duration)
    members = [SimpleNamespace(state=state, query_length=n, has_new_token=new) for state, n, new in batch]
    recorder.computed(members, end)
    for state, _, new in batch:
        state.tokens += new
    scheduler = SimpleNamespace(active_requests=dict(batch and {"a": 1}), waiting_requests={})
    recorder.updated(
        SimpleNamespace(scheduler=scheduler, cache=SimpleNamespace(compute_free_capacity=lambda: 0.75))
    )


def test_steps_of_transformers_are_recorded_and_read(tmp_path: Path) -> None:
    """A prompt in two chunks, a decode beside another prompt, and the end of a request."""
    file = StepFile(tmp_path / "steps.jsonl")
    file.put({"format": OWN_STEPS, "version": 1, "engine": "transformers", "engine_version": "5"})
    recorder = StepRecorder(file.put, file.fail)
    first, second = _State("load0-0", 100.0), _State("load0-1", 100.5)
    _loop(recorder, 100.5, 0.25, [(first, 256, False)])
    _loop(recorder, 101.0, 0.5, [(first, 100, True)])
    first.lifespan = (100.25, 102.0)
    _loop(recorder, 102.0, 1.5, [(first, 1, True), (second, 50, True)])  # begun while the step before ran
    file.close()
    (steps,) = read_serving([tmp_path / "steps.jsonl"]).steps
    assert steps.duration_s.tolist() == pytest.approx([0.25, 0.5, 1.0], abs=1e-6)
    assert steps.prefill_tokens.tolist() == [256, 100, 50]
    assert steps.decode_requests.tolist() == [0, 0, 1]
    assert steps.kv_ratio.tolist() == pytest.approx([0.25] * 3)
    assert (steps.finished.id, steps.finished.queue_s.tolist()) == (["load0-0"], [0.25])
    assert not (tmp_path / "steps.jsonl.log").exists()


def test_another_release_of_transformers_ends_the_recording_only(tmp_path: Path) -> None:
    file = StepFile(tmp_path / "steps.jsonl")
    recorder = StepRecorder(file.put, file.fail)
    recorder.guarded(recorder.computed)([SimpleNamespace()], 1.0)
    recorder.guarded(recorder.updated)(SimpleNamespace())
    file.close()
    assert "AttributeError" in (tmp_path / "steps.jsonl.log").read_text()


def test_only_transformers_of_this_environment_is_started_with_its_recorder(tmp_path: Path) -> None:
    settings = ServerSettings("x", 1, steps_file=tmp_path / "steps.jsonl")
    here = make_engine(ServeConfig())
    assert here.command(settings)[1:4] == ["-m", transformers_steps.__name__, "serve"]
    assert here.environment(settings)[transformers_steps.VARIABLE] == str(tmp_path / "steps.jsonl")
    assert transformers_steps.__name__ not in here.command(ServerSettings("x", 1))
    elsewhere = make_engine(ServeConfig(executable=["/opt/bin/transformers"]))
    assert elsewhere.command(settings)[:2] == ["/opt/bin/transformers", "serve"]
    assert transformers_steps.VARIABLE not in elsewhere.environment(settings)
