"""Shell completion: what is offered, in which shell, and at what cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.commands import VERBS, completion
from llm_perf_opt.commands.completion import complete
from llm_perf_opt.config.compose import known_keys
from llm_perf_opt.core.errors import ConfigError

MOST_CPU_S = 0.3


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("llm-perf-opt re", {"report"}),
        ("llm-perf-opt --v", {"--version"}),
        ("llm-perf-opt run --pl", {"--plan"}),
        ("llm-perf-opt ingest --n", {"--ncu", "--nsys"}),
        ("llm-perf-opt run run.mode=", {"run.mode=deep", "run.mode=light"}),
        ("llm-perf-opt run model.dtype=b", {"model.dtype=bfloat16"}),
        ("llm-perf-opt run infer.ignore_eos=", {f"infer.ignore_eos={v}" for v in ("true", "false", "null")}),
        ("llm-perf-opt run run.device=cu", {"run.device=cuda", "run.device=cuda:0"}),
        ("llm-perf-opt run model=llama_t", {"model=llama_tiny"}),
        ("llm-perf-opt run --multirun model=llama_tiny,qwen_m", {"model=llama_tiny,qwen_moe_tiny"}),
        (
            "llm-perf-opt run profiling/nsys@pipeline.nsys=nsys.p",
            {"profiling/nsys@pipeline.nsys=nsys.phases"},
        ),
        ("llm-perf-opt run pipeline.ncu.ncu_cli.nv", {"pipeline.ncu.ncu_cli.nvtx."}),
        ("llm-perf-opt run pipeline.nsys.enab", {"pipeline.nsys.enable="}),
        ("llm-perf-opt run model.ar", {"model.arch."}),
        ("llm-perf-opt run nothing.like.it", set()),
        ("llm-perf-opt completion z", {"zsh"}),
        ("llm-perf-opt nonsense --x", set()),
    ],
)
def test_what_is_offered(line: str, offered: set[str]) -> None:
    assert set(complete(line)) == offered


def test_every_verb_and_every_key_of_the_schema_is_offered() -> None:
    assert set(complete("llm-perf-opt ")) == {*VERBS, "--help", "--version"}
    inner = {key.rpartition(".")[0] for key in known_keys()}
    for key in known_keys() - inner:
        offered = complete(f"llm-perf-opt run {key}")
        assert f"{key}=" in offered or f"{key}." in offered, key


@pytest.mark.parametrize("shell", sorted(completion.SCRIPTS))
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main([shell]) == 0
    printed = capsys.readouterr().out
    assert "completion words" in printed
    assert completion.hydra_request(["run", "-sc", f"install={shell}"]) == 0
    assert capsys.readouterr().out == printed
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed, text=True, check=True, timeout=60)


def test_another_shell_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        completion.main(["tcsh"])
    assert "bash, zsh, fish" in (caught.value.hint or "")


@pytest.mark.needs("bash")
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("llm-perf-opt comp", ["compare", "completion"]),
        ("llm-perf-opt run model=llama_", ["llama_tiny"]),
        ("llm-perf-opt run profiling/nsys@pipeline.nsys=nsys.d", ["nsys.decode", "nsys.default"]),
    ],
)
def test_bash_replaces_only_what_is_behind_its_last_word_break(
    line: str, replies: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "llm-perf-opt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llm_perf_opt "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(llm-perf-opt completion bash)"\n'
        'COMP_LINE="$1" COMP_POINT=${#1}\n_llm_perf_opt llm-perf-opt 2>/dev/null\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", line],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == replies


@pytest.mark.parametrize(
    "line", ["llm-perf-opt r", "llm-perf-opt run model=", "llm-perf-opt run pipeline.ncu."]
)
def test_completion_imports_nothing_that_is_slow(line: str) -> None:
    code = (
        "import sys\nfrom llm_perf_opt.cli import main\nmain(['completion', 'words'])\n"
        "sys.exit(bool({'hydra', 'omegaconf', 'torch', 'polars', 'numpy'} & set(sys.modules)))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "COMP_LINE": line}, stdout=subprocess.DEVNULL,
        timeout=60, check=True,
    )  # fmt: skip


_ZSH_SESSION = r"""
zmodload zsh/zpty
zpty shell "PS1='%%' zsh -f -i"
zpty -w shell 'autoload -Uz compinit && compinit -D -u; eval "$(llm-perf-opt completion zsh)"; echo REA''DY'
zpty -r shell output '*READY*'
zpty -n -w shell "$1"$'\t'
zpty -r shell output "*$2*" && print -r -- completed
zpty -d shell
"""


@pytest.mark.needs("zsh")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("llm-perf-opt run pipeline.ns", "pipeline.nsys."),
        ("llm-perf-opt run model=llama_t", "model=llama_tiny"),
        ("llm-perf-opt what", "what-if"),
    ],
)
def test_zsh_completes_at_the_tab_key(line: str, completed: str, tmp_path: Path) -> None:
    program = tmp_path / "llm-perf-opt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llm_perf_opt "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["zsh", "-f", "-c", _ZSH_SESSION, "zsh", line, completed],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("completed\n"), done.stderr
