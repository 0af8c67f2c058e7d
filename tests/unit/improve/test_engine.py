"""``improve --engine``: whole searches on a stub server with planted gains and losses, and every way a server can fail."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.improve import engine, server_blocks
from llm_perf_opt.improve.engine_command import _joined_try
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.server_blocks import (
    PAIRS_PER_START,
    Block,
    KeptServers,
    ServerLoad,
    block_values,
    compare_answers,
    holds_over_starts,
    log_ratio,
    run_on_servers,
)
from llm_perf_opt.remedies.base import Machine, Situation, this_machine
from llm_perf_opt.remedies.data import Improvement, SearchSettings, Trial, load_improvement
from llm_perf_opt.remedies.engine_options import engine_remedies, server_remedy
from llm_perf_opt.remedies.registry import check_remedy
from llm_perf_opt.runs.app import prepare
from llm_perf_opt.stages.serve.client import LoadResult, RequestRecord
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig
from llm_perf_opt.stages.serve.engines import merge_options, read_options
from llm_perf_opt.stages.serve.load import LoadLevel, Vocabulary
from llm_perf_opt.summary import Finding
from llm_perf_opt.summary.serving import LoadPoint, Serving, StepStats
from tests.serving_stub import Behaviour, stub_environment
from tests.unit.stages.serve.test_stage import left_running

pytestmark = [pytest.mark.needs("serving"), pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[3]
GAIN, LOSS, REFUSED = "--max-num-seqs=6", "--max-num-batched-tokens=8", "--max-num-batched-tokens=4"
OTHER_ANSWERS, DIES = """--planted-word='"x"' --max-num-seqs=6""", "--planted-die-after-requests=30"


@pytest.fixture(autouse=True, scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        behaviour = Behaviour(model="as-started", decode_s=0.004, max_batch=1)
        for name, value in {**stub_environment(behaviour), "PYTHONPATH": str(REPOSITORY)}.items():
            patch.setenv(name, value)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"0" * 64)  # so that two servers are seen to fit
    return folder


def words(checkpoint: Path, out: Path, *more: str) -> list[str]:
    return [
        "improve", "--engine", "vllm", "--concurrency", "6", "--requests", "6", "--new-tokens", "4", "--prompt-tokens", "64",
        "--warmup-requests", "1", "--samples", "2", "--out", str(out), "-q",
        f"pipeline.serve.executable=[{sys.executable},-m,tests.serving_stub]", f"pipeline.serve.model={checkpoint}",
        "hardware.probe=false", "run.exclusive=false", "pipeline.serve.certify=false", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def searched(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One search with a gain, a loss, an option that is refused, one that kills the server and one that changes answers."""
    out = tmp_path_factory.mktemp("search") / "out"
    tried = [word for text in (GAIN, LOSS, REFUSED, DIES, OTHER_ANSWERS) for word in ("--try", text)]
    assert main(words(checkpoint, out, *tried, "--budget", "20m", "--", "--max-num-seqs", "1")) == 0
    return out


@pytest.fixture
def result(searched: Path) -> Improvement:
    return load_improvement(searched)


def single(result: Improvement, text: str) -> Trial:
    (found,) = [t for t in result.tried if t.role == "single" and t.overrides == shlex.split(text)]
    return found


def test_a_planted_gain_is_kept_and_confirmed(result: Improvement, searched: Path, checkpoint: Path) -> None:
    assert (result.status, result.metric, result.baseline.load) == ("complete", "tokens_per_s", "6 in flight")
    trial = single(result, GAIN)
    assert (trial.decision, trial.output) == ("keep", "equal")
    assert (
        trial.measured is not None and trial.measured.verdict == "gain" and trial.measured.change_ratio > 0.2
    )
    assert trial.metrics["ttft_p90"] < 0
    assert result.best.overrides == [GAIN] and result.best.confirmed
    command = shlex.split(result.best.command or "")
    assert command[-1] == GAIN and "1" not in command and str(checkpoint) in command
    assert (searched / "best.sh").read_text().endswith(f"{result.best.command}\n")
    assert "max-num-seqs=6" in (searched / "config" / "best.yaml").read_text()
    page = (searched / "improve.html").read_text()
    assert "started at least twice" in page and "load blocks" in page


def test_both_sides_are_started_at_least_twice_and_blocks_alternate(searched: Path) -> None:
    blocks = [
        json.loads(line) for line in (searched / "experiments/001/passes.jsonl").read_text().splitlines()
    ]
    # A busy machine may need a third start of both sides.
    assert {(one["side"], one["start"]) for one in blocks} >= {("a", 0), ("b", 0), ("a", 1), ("b", 1)}
    sides = "".join(one["side"] for one in blocks)
    assert all(sides[at : at + 4] in ("abba", "baab") for at in range(0, len(sides), 4))


def test_a_planted_loss_is_dropped(result: Improvement) -> None:
    trial = single(result, LOSS)
    assert trial.measured is not None
    assert (trial.decision, trial.measured.verdict) == ("drop", "slower")
    assert trial.measured.change_ratio < 0


def test_an_option_that_the_server_refuses_is_a_failed_trial_with_its_reason(result: Improvement) -> None:
    trial = single(result, REFUSED)
    assert (trial.decision, trial.measured) == ("failed", None)
    assert (
        "did not start: stub serve: error: argument --max-num-batched-tokens: must be at least 8"
        in trial.reason
    )
    assert "server.stderr.log" in trial.reason


def test_a_server_that_dies_in_a_block_ends_its_trial_only(result: Improvement) -> None:
    trial = single(result, DIES)
    assert trial.decision == "failed"
    assert "the server ended during" in trial.reason


def test_a_gain_with_other_answers_is_asked_about_and_not_kept(result: Improvement) -> None:
    trial = single(result, OTHER_ANSWERS)
    assert (trial.decision, trial.output) == ("ask", "differs")
    assert trial.check is not None
    assert (trial.check.samples, trial.check.differing_samples, trial.check.first_difference) == (2, 2, 1)


def test_no_process_is_left(searched: Path, checkpoint: Path) -> None:
    assert not left_running(checkpoint.parent)


def test_a_finished_search_is_resumed_only_with_its_executing_settings_repeated(
    searched: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["improve", "--resume", str(searched), "--budget", "5m", "-q"]) == 2
    said = capsys.readouterr().err
    assert "pipeline.serve.executable" in said and "pipeline.serve.args" in said
    before = load_improvement(searched)
    repeated = [
        f"pipeline.serve.executable=[{sys.executable},-m,tests.serving_stub]",
        *(item for item in before.baseline.overrides if item.startswith("pipeline.serve.args=")),
    ]
    assert main(["improve", "--resume", str(searched), "--budget", "5m", "-q", *repeated]) == 0
    assert [trial.overrides for trial in load_improvement(searched).tried] == [
        t.overrides for t in before.tried
    ]


def test_arguments_in_a_file_that_the_search_would_not_try_are_refused(
    result: Improvement, tmp_path: Path
) -> None:
    result.tried[0].overrides = ["--load-format=/evil"]
    with pytest.raises(ConfigError, match="--load-format=/evil"):
        engine._refuse_foreign_trials(result, engine.Planned([]), tmp_path)


def spec(a: list[str], b: list[str], **more: Any) -> Spec:
    settings = SearchSettings(most_samples=1, most_blocks=40)
    return Spec(a=a, b=b, metric="ttft_p50", settings=settings, alpha=0.05, limit_s=300.0, **more)


def load_of(checkpoint: Path, *, together: bool, starts_at_once: int = 1) -> ServerLoad:
    app = prepare(
        [
            "model=llama_tiny",
            "pipeline.serve.enable=true",
            f"pipeline.serve.model={checkpoint}",
            "hardware.probe=false",
        ],
        config_dir=None,
        config_name="config",
    ).config
    serve = ServeConfig(
        enable=True, engine=EngineName.vllm, executable=[sys.executable, "-m", "tests.serving_stub"],
        model=str(checkpoint), concurrency=[4], requests=4, new_tokens=3, prompt_tokens=8, warmup_requests=0,
    )  # fmt: skip
    return ServerLoad(app, serve, str(checkpoint), Vocabulary(), together, None, starts_at_once)


def test_a_gain_of_one_start_only_is_not_kept(checkpoint: Path, tmp_path: Path) -> None:
    run = server_blocks._Run(spec([], []), tmp_path, load_of(checkpoint, together=True), time.monotonic, 0.0)
    for start, ratio in ((0, 0.5), (1, 0.9)):
        for pair in range(8):
            a, b = (
                Block(side, start, pair, 1.0, 1, {"ttft_p50": value})
                for side, value in (("a", 1.0), ("b", ratio))
            )  # type: ignore[arg-type]
            run._add(a, b)
    found = run.outcome()
    assert found.measured is not None and found.measured.verdict == "not shown"
    assert found.note == "inconclusive: the change differs too much between 2 starts (-50.0 %, -10.0 %)"


def test_servers_that_do_not_fit_together_are_started_in_turns(checkpoint: Path, tmp_path: Path) -> None:
    load = load_of(checkpoint, together=False)
    found = run_on_servers(spec(["--max-num-seqs=1"], ["--max-num-seqs=4"]), tmp_path / "e", load)
    assert found.failure is None and found.measured is not None
    assert found.measured.verdict == "gain" and found.measured.blocks % (2 * PAIRS_PER_START) == 0
    blocks = [json.loads(line) for line in (tmp_path / "e" / "passes.jsonl").read_text().splitlines()]
    order = [blocks[at]["side"] for at in range(0, 4 * PAIRS_PER_START, PAIRS_PER_START)]
    assert order in (["a", "b", "b", "a"], ["b", "a", "a", "b"])


def folders(experiment: Path) -> list[str]:
    return sorted(one.name for one in experiment.glob("[ab][0-9]"))


def states_of(checkpoint: Path) -> list[str]:
    """States of the servers of a checkpoint (T: stopped)."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"serve" in words and str(checkpoint).encode() in words:
                found.append((file.parent / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_baseline_servers_are_kept_for_the_next_options_and_wait_paused(
    checkpoint: Path, tmp_path: Path
) -> None:
    load = load_of(checkpoint, together=True, starts_at_once=2)
    with KeptServers() as kept:
        for name, option in (("1", "--max-num-seqs=4"), ("2", "--max-num-seqs=2")):
            found = run_on_servers(spec(["--max-num-seqs=1"], [option]), tmp_path / name, load, kept=kept)
            assert found.failure is None and found.measured is not None and found.measured.verdict == "gain"
            assert found.check is not None and found.check.tokens_equal
        end = time.monotonic() + 30
        while states_of(checkpoint) != ["T", "T"]:  # a signal takes effect a little later
            assert time.monotonic() < end
            time.sleep(0.05)
        # A busy machine may need a third start of both sides.
        first, second = ({*folders(tmp_path / name)} for name in "12")
        assert {"a0", "a1", "b0", "b1"} <= first and {"b0", "b1"} <= second and not {"a0", "a1"} & second
        blocks = [json.loads(line) for line in (tmp_path / "1" / "passes.jsonl").read_text().splitlines()]
        assert [one["start"] for one in blocks[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
        # Another A: its servers are new, and those of the one before are ended.
        refused = run_on_servers(spec([REFUSED], []), tmp_path / "3", load, kept=kept)
        assert (refused.failure or "").startswith("the baseline's server did not start")
        assert states_of(checkpoint) == []
    assert not left_running(checkpoint.parent)


def test_kept_servers_never_get_the_prompts_of_an_earlier_experiment(
    checkpoint: Path, tmp_path: Path
) -> None:
    load = load_of(checkpoint, together=True, starts_at_once=2)
    with KeptServers() as kept:
        runs = [server_blocks._Run(spec([], []), tmp_path, load, time.monotonic, 0.0, kept) for _ in range(2)]
    seeds = [{run._first_seed + pair for pair in range(1000)} for run in runs]
    assert not seeds[0] & seeds[1]


def test_an_interruption_is_not_lost_if_ending_a_server_fails() -> None:
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise ToolError("disk full", hint="")
    except ToolError as error:
        assert server_blocks._replaced_interruption(error)
    assert not server_blocks._replaced_interruption(ToolError("disk full", hint=""))


def test_a_baseline_server_that_ended_is_started_again(checkpoint: Path, tmp_path: Path) -> None:
    load = load_of(checkpoint, together=True, starts_at_once=2)
    with KeptServers() as kept:
        # A server gets at least 21 requests before the test can decide: 1 answer, 4 of the warm-up, 4 blocks of 4.
        dies = ["--planted-die-after-requests=15"]
        first = run_on_servers(spec(dies, []), tmp_path / "1", load, kept=kept)
        assert "the baseline's server ended during" in (first.failure or "") and states_of(checkpoint) == []
        second = run_on_servers(spec([], dies), tmp_path / "2", load, kept=kept)
        assert "the server ended during" in (second.failure or "")
        assert len(states_of(checkpoint)) == 2  # of the baseline


@pytest.mark.parametrize(("gib", "pairs"), [(13, 2), (11, 1), (1, 1)])
def test_starts_that_are_made_at_the_same_time_depend_on_the_memory(
    checkpoint: Path, gib: int, pairs: int
) -> None:
    machine = Machine(cpus=2, memory_bytes=gib << 30)
    assert engine.pairs_that_fit(checkpoint, 1 << 30, machine) == pairs
    assert engine.pairs_that_fit(checkpoint, 1 << 30, Machine(cpus=2, memory_bytes=100)) == 0
    assert engine.pairs_that_fit(None, 1 << 30, machine) == 0


def test_a_baseline_that_does_not_start_is_named_as_such(checkpoint: Path, tmp_path: Path) -> None:
    found = run_on_servers(spec([REFUSED], []), tmp_path / "e", load_of(checkpoint, together=True))
    assert found.measured is None and (found.failure or "").startswith("the baseline's server did not start")


def test_a_start_beyond_the_budget_is_no_verdict_on_the_option(checkpoint: Path, tmp_path: Path) -> None:
    late = ["--planted-healthy-after-s=60"]
    found = run_on_servers(spec([], late, total_s=2.0), tmp_path / "e", load_of(checkpoint, together=True))
    assert found.out_of_budget and found.measured is None


# The pieces.


def test_options_are_merged_by_name() -> None:
    args = ["--max-num-seqs", "1", "-tp", "2", "--enable-prefix-caching", "--sizes", "1", "2", "--x=3"]
    assert read_options(args) == {
        "--max-num-seqs": "1",
        "--tensor-parallel-size": "2",
        "--enable-prefix-caching": "true",
        "--sizes": "1 2",
        "--x": "3",
    }
    changes = ["--no-enable-prefix-caching", "--tensor-parallel-size=4", "--sizes=5"]
    assert merge_options(args, changes) == ["--max-num-seqs", "1", "--x=3", *changes]
    assert read_options(changes)["--enable-prefix-caching"] == "false"


def test_the_metrics_of_a_block() -> None:
    records = [
        RequestRecord("a", 0, 10.0, status="ok", end_s=10.9, token_s=[10.1, 10.3, 10.9], output_tokens=3),
        RequestRecord("b", 0, 10.0, status="ok", end_s=10.5, token_s=[10.5], output_tokens=1),
        RequestRecord("c", 0, 10.0, status="error", end_s=10.5),
    ]
    result = LoadResult(LoadLevel("closed", concurrency=2), records, seconds=2.0)
    found = block_values(result, {"ttft": 0.2, "tpot": 0.5})
    assert found["tokens_per_s"] == 2.0 and found["goodput"] == 0.5
    assert found["ttft_p50"] == pytest.approx(0.3) and found["tpot_p99"] == pytest.approx(0.4)
    assert found["e2e_p50"] == pytest.approx(0.7)
    assert "goodput" not in block_values(result, {})
    assert block_values(result, {"ttft": 0.01})["goodput"] == 0.25  # none; a ratio needs one
    assert block_values(LoadResult(result.level, seconds=1.0), {}) == {}
    a, b = (
        Block(side, 0, 0, 1.0, 2, {"goodput": value, "ttft_p50": value})
        for side, value in (("a", 1.0), ("b", 2.0))
    )  # type: ignore[arg-type]
    assert log_ratio(a, b, "goodput") == -math.log(2) and log_ratio(a, b, "ttft_p50") == math.log(2)
    assert log_ratio(a, b, "e2e_p50") is None


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [
        ([-0.7], False),
        ([-0.7, -0.6], True),
        ([-0.10, -0.02], False),  # starts differ by as much as the gain
        ([-0.10, -0.09, -0.11], True),
        ([0.10, 0.11], False),
        ([-0.1, -0.1], True),
    ],
)
def test_a_gain_must_hold_over_the_starts(ratios: list[float], holds: bool) -> None:
    assert holds_over_starts(ratios) is holds


def test_answers_that_vary_between_starts_of_the_baseline_are_not_held_against_the_other_side() -> None:
    same = compare_answers([{"1": "a b", "2": "c"}] * 2, [{"1": "a b", "2": "c"}])
    assert same is not None and same.tokens_equal
    varying = compare_answers([{"1": "a b", "2": "c"}, {"1": "a b", "2": "d"}], [{"1": "a b", "2": "e"}])
    assert varying is not None and varying.tokens_equal and varying.samples == 1
    assert "1 of 2 answers differ between starts" in (varying.reason or "")
    none = compare_answers([{"1": "a"}, {"1": "b"}], [{"1": "a"}])
    assert none is not None and none.tokens_equal is None
    other = compare_answers([{"1": "a b c"}], [{"1": "a b c"}, {"1": "a x c"}])
    assert other is not None and (other.tokens_equal, other.first_difference) == (False, 2)
    assert compare_answers([], []) is None


@functools.cache
def composed(engine: str) -> AppConfig:
    return prepare(
        ["model=llama_tiny", "pipeline.serve.enable=true", f"pipeline.serve.engine={engine}",
         "pipeline.serve.executable=[/bin/true]", "pipeline.serve.concurrency=[8]", "hardware.probe=false"],
        config_dir=None, config_name="config",
    ).config  # fmt: skip


def situation(args: str, *findings: str, load: LoadPoint | None = None, engine: str = "vllm") -> Situation:
    return Situation(
        config=composed(engine),
        metric="tokens_per_s",
        machine=this_machine(),
        findings=[Finding(name, name, None, [], 1.0, "", "", "high") for name in findings],
        serving=Serving(load=[load] if load else [], steps=StepStats(9, 1, 8, 0, most_running=4)),
        server_options=read_options(args.split()),
    )


def offered(name: str, held: Situation, engine: EngineName = EngineName.vllm) -> tuple[list[str], str | None]:
    (remedy,) = [one for one in engine_remedies(engine) if one.name == name]
    found = check_remedy(remedy, held)
    assert not found.failed
    return [word for option in found.options for word in option], found.reason


def test_options_follow_findings_and_known_values() -> None:
    assert offered("batch-limit", situation("--max-num-seqs 2"))[0] == ["--max-num-seqs=8"]
    assert offered("batch-limit", situation("--max-num-seqs 8"))[0] == []
    assert offered("batch-limit", situation(""))[0] == []
    assert offered("batch-limit", situation("", "serving-batch-limit"))[0] == ["--max-num-seqs=8"]
    assert offered("batch-limit", situation("", "serving-preemption"))[0] == ["--max-num-seqs=2"]
    long = LoadPoint(prompt_tokens=500.0, concurrency=8.0)
    tokens = "--max-num-batched-tokens 1024"
    assert offered("step-tokens", situation(tokens, load=long))[0] == ["--max-num-batched-tokens=4096"]
    assert offered("step-tokens", situation("--max-num-batched-tokens 8192", load=long))[0] == []
    assert offered("step-tokens", situation(tokens, "serving-prefill", load=LoadPoint(prompt_tokens=10.0)))[
        0
    ] == ["--max-num-batched-tokens=256"]
    assert offered("step-tokens", situation("", load=long)) == (
        [], "neither the arguments nor the log of the server say what --max-num-batched-tokens is"
    )  # fmt: skip
    assert offered("prefix-cache", situation("--no-enable-prefix-caching"))[0] == ["--enable-prefix-caching"]
    assert offered("prefix-cache", situation("--enable-prefix-caching"))[0] == ["--no-enable-prefix-caching"]
    hits = LoadPoint(cached_ratio=0.5)
    assert offered("prefix-cache", situation("--enable-prefix-caching", load=hits))[0] == []
    assert offered("kv-dtype", situation("", "serving-kv-full"))[0] == ["--kv-cache-dtype=fp8"]
    assert offered("kv-dtype", situation(""))[0] == []
    assert offered("tensor-parallel", situation(""))[1] is not None or len(os.sched_getaffinity(0)) > 2
    held = situation("--cb-max-batch-tokens 256", load=long, engine="transformers")
    assert offered("step-tokens", held, EngineName.transformers)[0] == ["--cb-max-batch-tokens=1024"]


def test_own_options_are_words_that_begin_with_a_dash() -> None:
    assert server_remedy("--kv-cache-dtype=fp8").effect == "quality"
    assert server_remedy("--block-size=32").effect == "rounding"
    for text in ("max-num-seqs=3", "--open '", ""):
        with pytest.raises(ConfigError):
            server_remedy(text)
    assert _joined_try(["--try", "--x=1", "--out", "o"]) == ["--try=--x=1", "--out", "o"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--metric", "goodput"], "--slo"),
        (["--metric", "total"], "choose from"),
        (["--turns", "2", "--endpoint", "chat"], "conversations"),
        (["--try", "x=1"], "not a list of server options"),
        (["--only", "nothing-like-it"], "no remedy is named"),
        (["--pairs", "6"], "cannot show any gain"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(words(checkpoint, tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_the_plan_names_options_reasons_and_time(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = words(checkpoint, tmp_path / "out", "--plan", "--json", "--", "--max-num-seqs", "2")
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["overrides"] for one in found["candidates"]] == [["--max-num-seqs=6"]]
    assert {"graphs", "scheduling-policy"} <= {one["remedy"] for one in found["not_tried"]}
    assert not (tmp_path / "out").exists()
    assert main(words(checkpoint, tmp_path / "out", "--list")) == 0
    assert "batch-limit" in capsys.readouterr().out
