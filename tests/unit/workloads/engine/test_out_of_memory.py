"""Running out of memory says what did not fit, by how much, and which keys make it smaller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.cli import main
from llm_perf_opt.config.schema import Dtype, ModelConfig
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.devices import is_out_of_memory, shortage
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.engine.memory import Attempt, OutOfMemory, explained, out_of_memory
from tests.support import read_json
from tests.text_facts import mentions
from tests.unit.small_workloads import workload

GIB = 2.0**30
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.25 GiB is free. "
    "Including non-PyTorch memory, this process has 77.89 GiB memory in use. Of the allocated memory 74.00 GiB is allocated "
    "by PyTorch, and 3.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
SMALL = "HIP out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 191.98 GiB of which 0 bytes is free."
HOST = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "655364194304 bytes. Error code 12 (Cannot allocate memory)"
)


def test_reports_of_the_allocators_are_read() -> None:
    found = shortage(torch.OutOfMemoryError(CUDA))
    assert (found.tried_bytes, found.total_bytes, found.free_bytes) == (2 * GIB, 79.15 * GIB, 1.25 * GIB)
    assert (found.allocated_bytes, found.unused_bytes) == (74 * GIB, 3.5 * GIB)
    assert found.missing_bytes == 0.75 * GIB
    assert shortage(torch.OutOfMemoryError(SMALL)).missing_bytes == 20 * 2**20
    host = shortage(RuntimeError(HOST), host_free_bytes=1000)
    assert host.missing_bytes == 655364194304 - 1000
    assert shortage(MemoryError()).missing_bytes is None


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError(HOST), True),
        (RuntimeError("XPU out of memory. Tried to allocate 1 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("HIP error: hipErrorOutOfMemory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_running_out_is_taken_for_it(error: Exception, ran_out: bool) -> None:
    assert is_out_of_memory(error) is ran_out
    attempt = Attempt("decode", "cpu", ModelConfig())
    with pytest.raises(OutOfMemory if ran_out else type(error)), explained(attempt):
        raise error


def test_a_gpu_that_ran_out_in_a_pass() -> None:
    attempt = Attempt(
        "decode", "cuda:0", ModelConfig(name="big", dtype=Dtype.bfloat16), 8, 4096, 512,
        lambda: {"weights": 70 * GIB, "cache": 6 * GIB},
    )  # fmt: skip
    shown = out_of_memory(torch.OutOfMemoryError(CUDA), attempt)
    assert (shown.data["phase"], shown.data["device"], shown.data["tried_bytes"]) == (
        "decode",
        "cuda:0",
        2 * GIB,
    )
    assert mentions(shown.message, "cuda:0", "decode", "big", "8", "4096", "512"), "what was going on"
    assert mentions(shown.message, "2.00 GiB", "1.25 GiB", "768 MiB", "79.2 GiB", "74.0 GiB"), "by how much"
    assert mentions(shown.message, "70.0 GiB", "weights", "6.00 GiB", "cache"), "what was expected"
    assert shown.hint is not None
    assert shown.hint.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert mentions(shown.hint, "3.50 GiB", "infer.batch_size=4")
    assert "model.dtype" not in shown.hint, "it is in 16 bits already"
    assert (shown.exit_code, shown.code) == (ToolError.exit_code, "memory")
    assert shown.to_dict()["missing_bytes"] == 0.75 * GIB


def test_an_allocator_that_reports_nothing_is_not_guessed_for() -> None:
    shown = out_of_memory(torch.OutOfMemoryError("no"), Attempt("loading", "cuda:0", ModelConfig(name="big")))
    amounts = ("tried_bytes", "missing_bytes")
    assert (shown.data["phase"], *(shown.data[name] for name in amounts)) == ("loading", None, None)
    assert mentions(shown.message, "big", "cuda:0", "loading") and "iB" not in shown.message
    assert shown.hint is not None and shown.hint.startswith("model.dtype=bfloat16")
    assert (
        mentions(shown.hint, "model=llama_tiny", "run.device") and "PYTORCH_CUDA_ALLOC_CONF" not in shown.hint
    )


@pytest.mark.parametrize(
    ("phase", "method"),
    [("prefill", "prefill"), ("decode", "decode_step"), ("making the cache", "make_cache")],
)
def test_every_phase_reports_its_name(phase: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(workload("llama", max_new_tokens=4))

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr(engine.adapter, method, full)
    with pytest.raises(OutOfMemory) as caught:
        engine.run_sample([Sample("x", synthetic_tokens=9)])
    assert caught.value.data["phase"] == phase and mentions(caught.value.message, phase, "1", "9", "4")


def test_a_run_that_really_runs_out_has_its_other_stages_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of more than any machine has: the host's own allocator refuses."""
    monkeypatch.chdir(tmp_path)
    arch = {
        "max_position_embeddings": 10**8,
        "head_dim": 4096,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
    }
    arguments = [
        *(f"+model.arch.{key}={value}" for key, value in arch.items()),
        "infer.max_new_tokens=10000000",
    ]
    quick = [
        "infer.warmup_rounds=0",
        "run.repeats=1",
        "hardware.probe=false",
        "dataset.synthetic_tokens=16",
        "-q",
    ]
    assert (
        main(
            [
                "run",
                "model=llama_tiny",
                "model.cache=preallocated",
                *arguments,
                *quick,
                "artifacts.runs_dir=r",
            ]
        )
        == 1
    )
    stages = read_json(tmp_path / "r" / "manifest.json")["stages"]
    assert stages["static_analysis"]["status"] == "ok"
    assert stages["torch_profiler"]["status"] == "failed"
    reason, fix = stages["torch_profiler"]["reason"], stages["torch_profiler"]["fix"]
    assert mentions(reason, "prefill", "16", "10000000", "weights", "cache")
    sizes = re.findall(r"[\d.]+ [KMGT]iB", reason)
    assert len(sizes) == 5, "asked for, free, missing; and what was expected of weights and cache"
    assert "infer.max_new_tokens" in fix and "defect" not in fix
    assert (tmp_path / "r" / "report.html").is_file()
    assert "Traceback" not in capsys.readouterr().err
