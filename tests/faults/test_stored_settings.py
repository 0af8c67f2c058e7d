"""Run directories from somebody else: no command executes what their files name, unless the user repeats it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.hydra_bridge.stored_settings import executing_settings, missing_settings
from llm_perf_opt.improve import improve as improve_module
from llm_perf_opt.improve.improve import improve
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.summary.file import load_summary, save_summary
from llm_perf_opt.sweep.plan import PlannedJob, new_plan, write_plan
from tests.faults.matrix.case import QUICK
from tests.unit.history.runs_made import make_run

EXECUTING = (
    "model.trust_remote_code=true",
    "+model.trust_remote_code=true",
    "++model.trust_remote_code=1",
    "model={trust_remote_code: true}",
    "model.adapter=evil:Adapter",
    "model.adapter=evil.package:Adapter",
    "model.attn_implementation=someone/kernels",
    "model.experts_implementation=someone/kernels",
    "+model.arch.auto_map={AutoModel: evil.Model}",
    "dataset.adapter=evil:Data",
    "run.env.LD_PRELOAD=/tmp/evil.so",
    "run.env={LD_PRELOAD: /tmp/evil.so}",
    "+run.env.PYTHONPATH=/tmp/evil",
    "run.env.OMP_TOOL_LIBRARIES=/tmp/evil.so",
    "run.env.GLIBC_TUNABLES=/tmp/evil",
    "run.sinks=[mlflow]",
    "pipeline.workload.command=[touch,/tmp/evil]",
    "pipeline.workload={command: [touch, /tmp/evil]}",
    "pipeline.workload.env={LD_PRELOAD: /tmp/evil.so}",
    "pipeline.workload.env=['LD_PRELOAD=/tmp/evil.so']",
    "pipeline.nsys.executable=/tmp/evil",
    "pipeline.nsys.extra_args=[--env-var\\=LD_PRELOAD\\=/tmp/evil]",
    "pipeline.ncu.executable=/tmp/evil",
    "pipeline.serve.executable=[/tmp/evil]",
    "pipeline.serve.args=[--trust-remote-code]",
    "pipeline.serve.env={LD_PRELOAD: /tmp/evil.so}",
    "+pipeline.serve.env.LD_PRELOAD=/tmp/evil.so",
    "pipeline.serve={env: {PYTHONPATH: /tmp/evil}}",
    "pipeline.serve.url=http://192.0.2.1",
    "pipeline.serve.url=http://127.0.0.1:6379",
    "pipeline.serve.metrics_urls=['http://192.0.2.1']",
    "pipeline.serve.step_urls=['tcp://192.0.2.1:20380']",
    "pipeline.serve.allow_remote=true",
    "pipeline.serve.api_key_env=AWS_SECRET_ACCESS_KEY",
    "pipeline.serve={engine: attach, url: 'http://192.0.2.1', allow_remote: true, api_key_env: HF_TOKEN}",
    "pipeline.ncu.ncu_cli.extra_args=[--section-folder,/tmp/evil]",
    "+pipeline.someones_stage.enable=true",
    "hydra.searchpath=[file:///tmp/evil]",
    "hydra.job.env_set.LD_PRELOAD=/tmp/evil.so",
    "+hydra.callbacks.x._target_=os.mkdir",
    "hydra={searchpath: ['file:///tmp/evil']}",
    "+model@hydra.launcher=llama_tiny",
    "hydra.launcher.setup=[touch /tmp/evil]",
    "hydra/job_logging=evil",
    "hydra.sweeper.storage=sqlite:////tmp/evil",
    "model.trust_remote_code=false,true",
    "model.adapter=hf_causal_lm,evil:Adapter",
)
HARMLESS = (
    "model=llama_tiny",
    "model=/some/checkpoint",
    "model.path=/some/checkpoint",
    "model.trust_remote_code=false",
    "model.adapter=auto",
    "model.adapter=hf_causal_lm",
    "dataset.adapter=prompts",
    "model.attn_implementation=sdpa",
    "model.cache=static",
    "model.dtype=float32,bfloat16",
    "infer.max_new_tokens=range(1,3)",
    "infer.prompt='run model.trust_remote_code=true'",
    "run.env.OMP_WAIT_POLICY=ACTIVE",
    "run.env.GLIBC_TUNABLES=glibc.malloc.hugetlb\\=1",
    "run.env.PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'",
    "run.sinks=[]",
    "pipeline.nsys.enable=true",
    "pipeline.serve.enable=true",
    "pipeline.serve.engine=vllm",
    "pipeline.serve.rate=[1,2]",
    "pipeline.serve.allow_remote=false",
    "pipeline.serve.args=[]",
    "profiling/serve@pipeline.serve=serve.rates",
    "pipeline.workload.command=null",
    "hydra.sweep.dir=/somewhere",
    "hydra/launcher=joblib",
    "hydra.launcher.n_jobs=2",
)


@pytest.mark.parametrize("text", EXECUTING)
def test_settings_that_execute_are_recognised_in_every_form(text: str) -> None:
    assert executing_settings([text]) and missing_settings([text], [])
    assert not missing_settings([text], [text])


def test_no_key_of_a_stage_is_forgotten() -> None:
    """Keys that name programs, arguments, variables or servers, also those that a later stage adds."""
    from llm_perf_opt.core.stage import ENTRY_POINT_GROUP

    signs = ("executable", "args", "env", "command", "url", "remote", "plugin", "script")
    found = set()
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.value.startswith("llm_perf_opt."):
            for one in fields(point.load().config_type):
                if any(
                    part.rstrip("s") in [sign.rstrip("s") for sign in signs] for part in one.name.split("_")
                ):
                    found.add(f"pipeline.{point.name}.{one.name}")
    assert {"pipeline.serve.env", "pipeline.serve.args", "pipeline.nsys.executable"} <= found
    assert {key for key in found if not executing_settings([f"{key}=[x]"])} == set()


def test_a_reference_is_followed() -> None:
    stored = ["model.trust_remote_code=${model.compile}", "model.compile=true"]
    assert missing_settings(stored, []) == ["model.trust_remote_code=true"]
    assert not missing_settings(stored, ["model.trust_remote_code=true"])


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_settings_are_taken_over(text: str) -> None:
    assert not executing_settings([text])


def test_what_is_typed_wins() -> None:
    stored = ["model.trust_remote_code=true", "run.env={LD_PRELOAD: /x.so}"]
    code, preload = "model.trust_remote_code=true", "run.env.LD_PRELOAD=/x.so"
    assert missing_settings(stored, []) == [code, preload]
    assert missing_settings(stored, ["model.trust_remote_code=false"]) == [preload]
    assert missing_settings(stored, ["run.env.LD_PRELOAD=/y.so"]) == [code]
    assert missing_settings(stored, ["run.env={OMP_NUM_THREADS: 1}"]) == [code, preload]
    assert missing_settings(stored, ["run.env.LD_PRELOAD=/y.so"], applied=False) == [code, preload]


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place whose module, checkpoint, library and programs leave a file; return that file."""
    trace = tmp_path / "executed"
    code = f"open({str(trace)!r}, 'w').close()\n"
    (tmp_path / "evil.py").write_text(code)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "configuration_evil.py").write_text(
        f"{code}from transformers import LlamaConfig as EvilConfig\n"
    )
    (checkpoint / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}})
    )
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return trace


def attacks(folder: Path) -> dict[str, list[str]]:
    return {
        "remote code": ["model.trust_remote_code=true", f"model={folder / 'checkpoint'}"],
        "adapter": ["model.adapter=evil:Adapter"],
        "data set": ["model=llama_tiny", "dataset.adapter=evil:Data"],
        "program": [f"pipeline.workload.command=[{folder / 'program'}]"],
        "nsys": [
            "model=llama_tiny",
            "pipeline.nsys.enable=true",
            f"pipeline.nsys.executable={folder / 'program'}",
        ],
        "preload": ["model=llama_tiny", f"run.env.LD_PRELOAD={folder / 'evil.so'}"],
        "search path": ["model=llama_tiny", f"hydra.searchpath=[file://{folder}]"],
        "server": [
            "model=llama_tiny",
            "pipeline.serve.enable=true",
            "pipeline.serve.engine=vllm",
            f"pipeline.serve.env={{LD_PRELOAD: {folder / 'evil.so'}}}",
        ],
        "upload": [
            "pipeline.serve.enable=true",
            "pipeline.serve.engine=attach",
            "pipeline.serve.url=http://192.0.2.1",
            "pipeline.serve.allow_remote=true",
            "pipeline.serve.api_key_env=HF_TOKEN",
        ],
    }


KINDS = (
    "remote code",
    "adapter",
    "data set",
    "program",
    "nsys",
    "preload",
    "search path",
    "server",
    "upload",
)


def foreign_run(folder: Path, overrides: list[str]) -> Path:
    run = make_run(folder / "runs", "foreign")
    made = load_summary(run)
    made.run.command = ["llm-perf-opt", "run", *overrides]
    save_summary(made, run)
    return run


def typed_command(message: str) -> list[str]:
    """The command that an error shows."""
    line = message[message.index("llm-perf-opt ") :].splitlines()[0]
    return shlex.split(line)[1:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", [False, True])
def test_improve_takes_nothing_over_that_executes(
    kind: str, plan: bool, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = attacks(evil.parent)[kind]
    run = foreign_run(evil.parent, stored)
    arguments = ["improve", str(run), "--try", "model.cache=static", *(["--plan"] if plan else [])]
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert not evil.exists()
    assert "not taken over" in output.err
    for key in executing_settings(stored):
        assert key in output.err
    assert not (evil.parent / "tmp").exists()
    if plan:  # what would be taken over is shown first
        assert stored[0].partition("=")[0] in output.out
    repeated = typed_command(output.err)
    assert repeated[:2] == ["improve", str(run)]
    assert not missing_settings(stored, repeated[2:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["baseline", "own", "tried", "on top of"])
def test_a_resumed_search_takes_nothing_over_that_executes(
    kind: str, place: str, evil: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.improve.test_search import result

    stored = attacks(evil.parent)[kind]
    out = evil.parent / "search"
    out.mkdir()
    made: Any = result()
    made.baseline.overrides = stored if place == "baseline" else ["model=llama_tiny"]
    made.method = replace(made.method, own=[shlex.join(stored)] if place == "own" else [])
    if place in ("tried", "on top of"):
        from llm_perf_opt.remedies.data import Trial

        trial = Trial("x", [], None, None, None, "equal", "keep", "")
        (trial.overrides if place == "tried" else trial.on_top_of).extend(stored)
        made.tried = [trial]
    improve_module.save_improvement(made, out)
    assert main(["improve", "--resume", str(out)]) == 2
    output = capsys.readouterr().err
    assert not evil.exists() and "not taken over" in output
    repeated = typed_command(output)
    assert repeated[:3] == ["improve", "--resume", str(out)]


@pytest.mark.parametrize("kind", [*KINDS, "presets"])
def test_a_resumed_sweep_takes_nothing_over_that_executes(
    kind: str, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = evil.parent / "sweep"
    sweep.mkdir()
    stored = [] if kind == "presets" else attacks(evil.parent)[kind]
    plan = new_plan("basic", stored, [], [PlannedJob(0, "0", stored)])
    if kind == "presets":
        (evil.parent / "presets").mkdir()
        plan.config_dir = str(evil.parent / "presets")
    write_plan(sweep, plan)
    assert main(["run", f"--resume={sweep}"]) == 2
    output = capsys.readouterr().err
    assert not evil.exists() and "not taken over" in output
    repeated = typed_command(output)
    assert repeated[:2] == ["run", f"--resume={sweep}"] and len(repeated) > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "verb", ["report", "what-if", "compare", "compare --baseline", "index", "history", "plan of another run"]
)
def test_verbs_that_only_read_execute_nothing(verb: str, kind: str, evil: Path) -> None:
    run = foreign_run(evil.parent, attacks(evil.parent)[kind])
    (run / "config.yaml").write_text("model:\n  trust_remote_code: true\n  adapter: evil:Adapter\n")
    other = make_run(evil.parent / "runs", "ours", day=2)
    expected = {
        "report": ["report", str(run)],
        "what-if": ["what-if", str(run)],
        "compare": ["compare", str(run), str(other), "--out", str(evil.parent / "c")],
        "compare --baseline": ["compare", str(other), "--baseline", "latest", "--any-configuration"],
        "index": ["index", str(evil.parent / "runs")],
        "history": ["history", str(evil.parent / "runs")],
        "plan of another run": ["improve", "model=llama_tiny", "--plan"],
    }[verb]
    assert main(expected) in (0, 2, 3)
    assert not evil.exists()


@pytest.mark.parametrize("other", [[], ["hydra/launcher=basic"], ["model=llama_tiny"]])
def test_a_swept_program_is_repeated_as_a_sweep(other: list[str]) -> None:
    swept = "pipeline.workload.command=[python,a.py],[python,b.py]"
    assert missing_settings([*other, swept], []) == [swept]
    assert missing_settings([*other, swept], [swept]) == []
    assert missing_settings([*other, swept], ["pipeline.workload.command=[python,a.py]"], applied=False) == [
        swept
    ]


def test_a_repeated_setting_is_taken(evil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the error works: the user has read what it executes."""
    run = foreign_run(evil.parent, [*QUICK, "run.env.PYTHONHASHSEED='0'"])
    assert main(["improve", str(run), "--try", "model.cache=static", "--plan"]) == 2
    again = typed_command(capsys.readouterr().err)
    assert main([*again, "--try", "model.cache=static", "--plan"]) == 0
    assert "model.cache=static" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["--out", "--resume"])
def test_a_second_search_in_one_directory_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.improve.test_search import result

    out = tmp_path / "search"
    out.mkdir()
    if how == "--resume":
        improve_module.save_improvement(result(), out)
    holder = (
        "import sys; from pathlib import Path; from llm_perf_opt.runs.lock import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    before = sorted(path.name for path in out.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert (
            main(
                ["improve", "model=llama_tiny", *QUICK[1:], how, str(out)]
                if how == "--out"
                else ["improve", how, str(out)]
            )
            == 2
        )
        assert "another process writes in" in capsys.readouterr().err
        assert sorted(path.name for path in out.iterdir()) == sorted([*before, "run.lock"])
        assert process.stdin is not None
        process.stdin.close()


def test_a_search_releases_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(improve_module, "_check", lambda request: None)

    def search(request: object, out: Path, *rest: Any) -> None:
        seen.append((out / "run.lock").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(improve_module, "_search_on", search)
    with pytest.raises(KeyboardInterrupt):
        improve(improve_module.Request(out=tmp_path))
    assert seen == [True]
    with hold(tmp_path):
        pass


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("most_blocks", -5),
        ("most_blocks", 10**9),
        ("most_samples", 0),
        ("least_gain_ratio", -1.0),
    ],
)
def test_a_resumed_search_with_impossible_numbers_is_refused(
    key: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.improve.test_search import result

    made: Any = result()
    made.method = replace(made.method, **{key: value})
    improve_module.save_improvement(made, tmp_path)
    assert main(["improve", "--resume", str(tmp_path)]) == 3
    assert key in capsys.readouterr().err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("expected", ["--version", "--help", "index ."])
def test_closed_streams_lead_nowhere(closed: str, expected: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.quote(sys.executable)} -m llm_perf_opt {expected} {closed}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_a_lock_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    import os

    from llm_perf_opt.core.errors import LlmPerfError

    lock = tmp_path / "run.lock"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "directory":
        lock.mkdir()
    else:
        lock.symlink_to("/dev/null")
    with pytest.raises(LlmPerfError, match=r"run\.lock"), hold(tmp_path):
        pass


@pytest.mark.parametrize(
    "text", ["hydra.sweeper=99999999999999999999", "hydra.launcher=3", "hydra.sweeper=null"]
)
def test_sections_of_hydra_are_not_replaced_by_values(text: str) -> None:
    assert main(["run", "--multirun", text, "model=llama_tiny"]) == 2
