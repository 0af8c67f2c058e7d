"""Secrets in the environment and on command lines: what captures, results, logs and the console hold of them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.secrets import MASK, mask_arguments, mask_text, mask_tree
from llm_perf_opt.process.environment import allowed_environment
from llm_perf_opt.process.tools import find_tools
from llm_perf_opt.stages.workload import Workload, replay_lines
from tests.support import QUICK, cli

SECRET = "q9ZverySecretValue77"
NO_OTHER_STAGE = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "hardware.probe=false",
)
ENVIRONMENT = {
    "MY_DATABASE_LOGIN": SECRET,
    "HF_TOKEN": f"hf_{SECRET}",
    "CUDA_API_KEY": SECRET,
    "http_proxy": f"http://me:{SECRET}@proxy.invalid:1",
    "MY_SETTING": "wanted-by-the-program",
}


def _holding(folder: Path, text: str) -> list[str]:
    """Return the files that hold a text, also in two bytes per letter."""
    wanted = (text.encode(), text.encode("utf-16-le"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(word in path.read_bytes() for word in wanted))


@pytest.mark.needs("nsys")
@pytest.mark.parametrize("nsys", find_tools("nsys") or [None], ids=str)
def test_a_capture_holds_no_secret_and_what_the_user_named(nsys: Path, tmp_path: Path) -> None:
    done = cli(
        "run",
        *NO_OTHER_STAGE,
        "pipeline.nsys.enable=true",
        f"pipeline.nsys.executable={nsys}",
        "pipeline.nsys.trace=osrt",
        "pipeline.nsys.timeout_s=60",
        f"pipeline.workload.command=[{sys.executable},-c,'import os; print(os.environ[\"MY_SETTING\"])']",
        "pipeline.workload.env=[MY_SETTING]",
        f"artifacts.runs_dir={tmp_path / 'run'}",
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/nsys/run.nsys-rep").stat().st_size
    assert (tmp_path / "run/nsys/run.sqlite").stat().st_size
    assert _holding(tmp_path / "run", SECRET) == []
    assert "run.sqlite" in _holding(tmp_path / "run/nsys", ENVIRONMENT["MY_SETTING"])
    assert "run.stdout.log" in _holding(tmp_path / "run/nsys/logs", ENVIRONMENT["MY_SETTING"])


def test_secrets_on_the_command_line_are_masked_in_all_that_is_written_and_printed(tmp_path: Path) -> None:
    """A stand-in for nsys fails and repeats the program's words, as the real one does."""
    tool = tmp_path / "nsys"
    tool.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo "NVIDIA Nsight Systems version 2024.2.3.38-1v0";; '
        f'profile) [ "$2" = --help ] || {{ echo "cannot log in: password={SECRET}"; exit 3; }};; esac\n'
    )
    tool.chmod(0o755)
    done = cli(
        "run",
        "-v",
        *NO_OTHER_STAGE,
        "pipeline.nsys.enable=true",
        f"pipeline.nsys.executable={tool}",
        f"pipeline.workload.command=[python3,x.py,--api-key,{SECRET},'--token={SECRET}','https://me:{SECRET}@host/x']",
        f"pipeline.workload.env={{MY_PASSWORD:{SECRET},MY_SETTING:plain}}",
        f"artifacts.runs_dir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert SECRET not in done.stdout + done.stderr
    holding = _holding(tmp_path / "run", SECRET)
    assert holding == ["run.stdout.log"], "only what the program itself printed"
    for name in (
        "config.yaml",
        "manifest.json",
        "summary.json",
        "report.md",
        "report.html",
        "nsys/cmd.txt",
        "run.log",
    ):
        assert (tmp_path / "run" / name).is_file()
    recorded = (tmp_path / "run/nsys/cmd.txt").read_text()
    assert "--api-key" in recorded
    assert "MY_SETTING=plain" in recorded
    assert re.search(r"^# \*\*\* .*secret", recorded, flags=re.MULTILINE)
    assert "x.py" in (tmp_path / "run/config.yaml").read_text()


def test_a_plan_and_an_error_are_masked(tmp_path: Path) -> None:
    arguments = [f"pipeline.workload.command=[python3,x.py,--api-key,{SECRET}]", "pipeline.nsys.enable=true"]
    done = cli("run", "--plan", *NO_OTHER_STAGE, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout
    done = cli("run", f"model.path=https://me:{SECRET}@host/x", "model.weights=nonsense", cwd=tmp_path)
    assert done.returncode == 2
    assert SECRET not in done.stdout + done.stderr


def test_an_ordinary_configuration_is_recorded_as_it_is(tmp_path: Path) -> None:
    from llm_perf_opt.config.compose import resolved_yaml
    from llm_perf_opt.config.hydra_bridge.compose import compose_raw

    raw = compose_raw([*QUICK, f"artifacts.runs_dir={tmp_path}"])
    text = resolved_yaml(OmegaConf.masked_copy(raw, [key for key in raw if key != "hydra"]))
    assert "***" not in text
    assert "max_new_tokens: 4" in text


def test_what_programs_need_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {
        "LD_LIBRARY_PATH": "/lib", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "HF_HOME": "/hf",
        "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": "/c", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0", "VIRTUAL_ENV": "/venv", "LLM_PERF_OPT_CACHE": "/cache", "PYTORCH_CUDA_ALLOC_CONF": "x:True",
        "UCX_TLS": "rc", "FI_PROVIDER": "efa", "GLOO_SOCKET_IFNAME": "eth0", "SLURM_JOB_ID": "7", "NVSHMEM_DEBUG": "INFO",
        "SGLANG_TORCH_PROFILER_DIR": "/t", "FLASHINFER_CACHE_DIR": "/f", "VLLM_USE_V1": "1", "RCCL_MSCCL_ENABLE": "0",
    }  # fmt: skip
    secrets = {"SLURM_JWT": "anything", "SGLANG_API_KEY": "x", "RAY_REDIS_PASSWORD": "x"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    for name, value in {**needed, **ENVIRONMENT}.items():
        monkeypatch.setenv(name, value)
    allowed = allowed_environment()
    assert {name: allowed.get(name) for name in needed} == needed
    assert {"PATH", "HOME"} & set(os.environ) <= set(allowed)
    assert not {*ENVIRONMENT, *secrets} & set(allowed)
    assert allowed_environment({"HF_TOKEN": "hf_named"})["HF_TOKEN"] == "hf_named"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("pipeline.workload.env=[MY_SETTING,NOT_SET_ANYWHERE]", {"MY_SETTING": "here"}),
        ("pipeline.workload.env=['MY_SETTING=there']", {"MY_SETTING": "there"}),
        (
            "pipeline.workload.env={MY_SETTING:there,COUNT:3,ON:true}",
            {"MY_SETTING": "there", "COUNT": "3", "ON": "true"},
        ),
        ("pipeline.workload.env=null", {}),
    ],
)
def test_names_and_values_of_the_configuration(
    override: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_perf_opt.stages.workload import workload

    monkeypatch.setenv("MY_SETTING", "here")
    config = compose_config([override, "pipeline.workload.command=[true]", f"artifacts.runs_dir={tmp_path}"])
    assert workload(config, tmp_path).named == expected


@pytest.mark.parametrize("value", ["3", "[1x]", "['A B=1']", "{A:[1]}", "text"])
def test_what_cannot_be_an_environment_is_refused_before_anything_runs(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.workload\.env"):
        compose_config([f"pipeline.workload.env={value}", f"artifacts.runs_dir={tmp_path}"])


def test_a_recorded_command_without_secrets_runs_as_it_is(tmp_path: Path) -> None:
    own = Workload(argv=("python", "it's"), cwd=tmp_path, env={"A": "b c"})
    assert replay_lines(own.argv, env=own.added_env) == "A='b c' python 'it'\"'\"'s'"


_REQUEST = (
    f"pipeline.workload.command=[/bin/true,curl,-u,'me:{SECRET}',-H,'Authorization: Token {SECRET}',"
    f"--api-key,{SECRET},'https://b.s3/x?X-Amz-Signature={SECRET}']"
)


def test_a_sweep_prints_and_writes_no_secret_also_in_messages_of_hydra(tmp_path: Path) -> None:
    done = cli(
        "run", "--multirun", *NO_OTHER_STAGE, _REQUEST, f"pipeline.workload.env={{MY_PASSWORD: {SECRET}}}",
        "pipeline.workload.repeats=1", "run.top_n_kernels=1,2", f"hydra.sweep.dir={tmp_path / 's'}", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "#0 : " in done.stdout + done.stderr, "Hydra's own line"
    assert SECRET not in done.stdout + done.stderr
    assert _holding(tmp_path / "s", SECRET) == []


@pytest.mark.parametrize(
    "arguments", [["--cfg", "job"], ["--cfg", "hydra"], ["--cfg", "all"], ["--info", "config"]]
)
def test_a_printed_configuration_holds_no_secret(arguments: list[str], tmp_path: Path) -> None:
    done = cli("run", *arguments, _REQUEST, f"pipeline.workload.env={{MY_PASSWORD: {SECRET}}}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "command" in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_the_name_of_a_variable_is_kept_so_that_it_can_be_repeated() -> None:
    arguments = [
        "--api-key-env",
        "SERVING_KEY",
        "pipeline.serve.api_key_env=SERVING_KEY",
        "--api-key=q9Zsecret",
        "api_key=q9Zsecret",
    ]
    assert mask_arguments(arguments) == [*arguments[:3], f"--api-key={MASK}", f"api_key={MASK}"]
    assert mask_tree({"api_key_env": "SERVING_KEY", "api_key": "q9Zsecret"}) == {
        "api_key_env": "SERVING_KEY",
        "api_key": MASK,
    }
    assert MASK in mask_text("api_key_env=sk-0123456789abcdef0123456789abcdef")
