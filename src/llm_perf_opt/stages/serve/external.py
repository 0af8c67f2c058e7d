"""External load clients: aiperf, guidellm and ``vllm bench serve``, where they are installed.

Their result files are kept unchanged and read by :mod:`llm_perf_opt.captures.serving`. Flags are those of aiperf 0.13, guidellm 0.8
and vLLM 0.33.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.process.tools import find_program
from llm_perf_opt.stages.serve.config import ClientName, Endpoint, EngineName, ServeConfig, key_of
from llm_perf_opt.stages.serve.load import LoadLevel

_PROGRAMS = {ClientName.aiperf: "aiperf", ClientName.guidellm: "guidellm", ClientName.vllm_bench: "vllm"}
_RESULTS = {
    ClientName.aiperf: ("profile_export.jsonl", "profile_export_aiperf.json"),
    ClientName.guidellm: ("benchmarks.json",),
    ClientName.vllm_bench: ("result.json",),
}
"""Files that a client leaves: its requests, and a summary with the load that was asked for."""


def _client_program(config: ServeConfig) -> list[str]:
    """Return the program of a client: the configured one; for ``vllm bench`` that of the engine; else by its name."""
    if config.client_executable:
        return list(config.client_executable)
    if config.client is ClientName.vllm_bench and config.engine is EngineName.vllm and config.executable:
        return list(config.executable)
    return [_PROGRAMS[config.client]]


def client_problems(config: ServeConfig) -> list[Problem]:
    """Return what is missing or unsupported by the client."""
    program = _client_program(config)[0]
    problems = []
    if not (Path(program).expanduser().is_file() if os.sep in program else find_program(program)):
        problems.append(
            Problem(
                "skip",
                f"{program} is not installed",
                f"install it, name its program: {key_of('client_executable')}=[PATH], or use {key_of('client')}=builtin",
                key_of("client"),
                of_machine=True,
            )
        )
    for name in ("trace", "prompts_file", "duration_s"):
        if getattr(config, name) is not None:
            message = f"{key_of(name)} is not supported with {key_of('client')}={config.client.value}"
            problems.append(Problem("error", message, f"use {key_of('client')}=builtin", key_of(name)))
    if config.api_key_env is not None:
        # The key would be a command-line argument, visible to every user of the machine.
        message = f"{key_of('api_key_env')} is not supported with {key_of('client')}={config.client.value}"
        problems.append(Problem("error", message, f"use {key_of('client')}=builtin", key_of("api_key_env")))
    return problems


def client_command(config: ServeConfig, level: LoadLevel, url: str, model: str, folder: Path) -> list[str]:
    """Return the command of one load point; the user's own arguments come last and take precedence."""
    return [*_client_arguments(config, level, url, model, folder), *config.client_args]


def _client_arguments(config: ServeConfig, level: LoadLevel, url: str, model: str, folder: Path) -> list[str]:
    requests = config.requests or 100
    chat = config.endpoint is Endpoint.chat
    if config.client is ClientName.aiperf:
        load = (
            ["--request-rate", f"{level.rate_per_s:g}"]
            if level.rate_per_s
            else ["--concurrency", str(level.concurrency)]
        )
        return [
            *_client_program(config), "profile",
            "-m", model, "-u", url, "--endpoint-type", "chat" if chat else "completions", "--streaming", *load,
            "--request-count", str(requests), "--synthetic-input-tokens-mean", str(config.prompt_tokens),
            "--output-tokens-mean", str(config.new_tokens), "--extra-inputs", "ignore_eos:true",
            "--random-seed", str(config.seed), "--artifact-dir", str(folder), "--ui", "none",
        ]  # fmt: skip
    if config.client is ClientName.guidellm:
        profile = (
            f"kind=concurrent,streams={level.concurrency}"
            if level.rate_per_s is None
            else f"kind={config.arrival.value},rate={level.rate_per_s:g}"
        )
        route = "/v1/chat/completions" if chat else "/v1/completions"
        return [
            *_client_program(config), "run", "--backend", f"kind=openai_http,target={url},model={model},request_format={route}",
            "--profile", profile, "--constraint", f"kind=max_requests,count={requests}",
            "--data", f"kind=synthetic_text,prompt_tokens={config.prompt_tokens},output_tokens={config.new_tokens}",
            "--output", f"kind=json,path={folder / 'benchmarks.json'}", "--disable-progress",
        ]  # fmt: skip
    load = (
        ["--request-rate", f"{level.rate_per_s:g}"]
        if level.rate_per_s
        else ["--max-concurrency", str(level.concurrency)]
    )
    return [
        *_client_program(config), "bench", "serve", "--backend", "openai-chat" if chat else "openai", "--base-url", url, "--model", model,
        *(["--endpoint", "/v1/chat/completions"] if chat else []), "--dataset-name", "random", *load,
        "--random-input-len", str(config.prompt_tokens), "--random-output-len", str(config.new_tokens), "--ignore-eos",
        "--num-prompts", str(requests), "--seed", str(config.seed), "--save-result", "--save-detailed",
        "--result-dir", str(folder), "--result-filename", "result.json",
    ]  # fmt: skip


def run_client(
    config: ServeConfig, level: LoadLevel, url: str, model: str, folder: Path, log_dir: Path, number: int
) -> list[Path]:
    """Run one load point; return its results, kept as ``<client>-<number>.json[l]`` next to the logs."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = client_command(config, level, url, model, folder)
    limit = (config.requests or 100) * config.request_timeout_s
    done = run_process(
        argv, log_dir=log_dir, name=f"{config.client.value}-{number}", timeout_s=limit, cwd=folder
    )
    found = [
        path
        for name in _RESULTS[config.client]
        for path in sorted(folder.rglob(name))[:1]
        if path.stat().st_size
    ]
    if not found:
        raise ToolError(
            f"{config.client.value} left no result ({done.ended}, exit code {done.returncode}): {done.tail(5)}",
            hint=f"see serve/{config.client.value}-{number}.stderr.log",
        )
    kept = log_dir / f"{config.client.value}-{number}"
    return [Path(shutil.copyfile(path, f"{kept}{path.suffix}")) for path in found]
