"""A checkpoint goes to its device tensor by tensor; the host does not hold the model besides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.integrations import accelerate as integration

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.engine.memory import ResidentMeter
from llm_perf_opt.workloads.models.loading import load_pretrained
from tests.text_facts import mentions

HALF_BYTES = 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, int]:
    """Some 30 million parameters in float32, so that loading them as bfloat16 makes new tensors somewhere."""
    config = LlamaConfig(
        vocab_size=8192, hidden_size=1024, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("checkpoint")
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return folder, config, sum(parameter.numel() for parameter in model.parameters())


def load(checkpoint: tuple[Path, Any, int], device: str) -> torch.nn.Module:
    folder, config, _ = checkpoint
    return load_pretrained(AutoModelForCausalLM, str(folder), config, torch.bfloat16, device, {})


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of a process are Linux's to tell")
def test_the_host_does_not_hold_what_goes_to_a_device(checkpoint: tuple[Path, Any, int]) -> None:
    """The meta device stands for one with memory of its own: what reaches it is off the host."""
    load(checkpoint, "meta")  # imports and first allocations
    peaks = {}
    for device in ("meta", "cpu"):
        meter = ResidentMeter()
        meter.reset()
        model = load(checkpoint, device)
        peaks[device] = meter.peaks()[0]
        assert {parameter.device.type for parameter in model.parameters()} == {device}
        del model
    weights = checkpoint[2] * HALF_BYTES
    assert peaks["meta"] < weights / 2
    assert peaks["cpu"] >= weights, "what loading to the host takes: the measurement sees weights"


def test_weights_are_the_checkpoint_s(checkpoint: tuple[Path, Any, int]) -> None:
    ours = load(checkpoint, "cpu").state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint[0], dtype=torch.bfloat16).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_transformers_is_left_as_it_was(checkpoint: tuple[Path, Any, int]) -> None:
    before = integration.is_accelerate_available
    load(checkpoint, "meta")
    assert integration.is_accelerate_available is before


def test_running_out_is_not_blamed_on_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    class Auto:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> None:
            raise error

    for error in (
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    ):
        with pytest.raises(type(error)):
            load_pretrained(Auto, "somewhere", None, torch.float32, "cpu", {})
    error = RuntimeError("size mismatch")
    with pytest.raises(InputError) as caught:
        load_pretrained(Auto, "somewhere", None, torch.float32, "cpu", {})
    assert mentions(caught.value.message, "somewhere", "size mismatch")
