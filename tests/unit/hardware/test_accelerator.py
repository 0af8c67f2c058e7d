"""Where torch's kinds of devices differ: what is asked of each, on stand-ins of their modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import Dtype
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.accelerator import (
    DeviceProperties,
    HostProcessor,
    computes_natively,
    device_properties,
    offered_device,
    open_accelerator,
    seeded,
)
from llm_perf_opt.workloads import devices
from llm_perf_opt.workloads.devices import confirm_device, resolve_dtype
from tests.text_facts import mentions


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of a GPU whose bfloat16 is emulated on its second device."""
    found: list[Any] = []
    current = [0]

    @contextlib.contextmanager
    def device_index(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        found.append((current[0], including_emulation))
        return including_emulation or current[0] == 0

    module = SimpleNamespace(
        is_bf16_supported=is_bf16_supported,
        get_device_properties=lambda device: SimpleNamespace(
            name="NVIDIA Turing",
            total_memory=16 << 30,
            uuid="a-b",
            pci_domain_id=0,
            pci_bus_id=0xC1,
            pci_device_id=2,
        ),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    monkeypatch.setattr(
        torch.accelerator, "get_device_capability", lambda device: {"supported_dtypes": {torch.float16}}
    )
    return found


def test_emulation_is_no_support_and_the_right_device_is_queried(queries: list[Any]) -> None:
    assert computes_natively("cuda:0", torch.bfloat16)
    assert not computes_natively("cuda:1", torch.bfloat16)
    assert queries == [(0, False), (1, False)]


def test_the_data_type_of_auto_is_native(queries: list[Any]) -> None:
    assert resolve_dtype(Dtype.auto, "cuda:0") is torch.bfloat16
    assert resolve_dtype(Dtype.auto, "cuda:1") is torch.float16
    with pytest.raises(ConfigError) as caught:
        resolve_dtype(Dtype.bfloat16, "cuda:1")
    assert caught.value.data["key"] == "model.dtype"
    assert mentions(caught.value.message, "model.dtype=bfloat16", "NVIDIA Turing")


def test_properties_by_the_names_that_kinds_share(queries: list[Any]) -> None:
    assert device_properties("cuda:1") == DeviceProperties("NVIDIA Turing", 16 << 30, "a-b", "0000:c1:02")


def test_a_device_that_reports_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(device: object) -> tuple[int, int]:
        raise NotImplementedError

    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.accelerator, "get_memory_info", silent)
    assert device_properties("npu:0") == DeviceProperties(None, None)


def test_the_host_has_nothing_to_wait_for() -> None:
    host = open_accelerator("cpu")
    assert isinstance(host, HostProcessor) and not host.is_asynchronous
    assert host.memory() is None and host.peak_memory() is None and host.free_bytes() is None
    start = host.record(timed=True)
    host.wait(start)
    assert host.seconds(start, host.record(timed=True)) >= 0


def test_seeds_of_a_device_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS has one device, and its functions take none."""
    state = ["before"]
    module = SimpleNamespace(
        get_rng_state=lambda: state[0], set_rng_state=lambda value: state.__setitem__(0, value)
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    host = torch.get_rng_state()
    with seeded("mps", 3):
        state[0] = "drawn from"
        first = torch.rand(3)
    with seeded("mps", 3):
        assert torch.equal(torch.rand(3), first)
    assert state == ["before"] and torch.equal(torch.get_rng_state(), host)


def test_here_torch_offers_nothing_but_the_cpu() -> None:
    if torch.accelerator.is_available():
        assert offered_device() is not None
    else:
        assert offered_device() is None


@pytest.mark.parametrize(
    ("wanted", "expected", "offered", "name", "noted"),
    [
        ("auto", "cuda:0", ("cuda", 2), "cuda:0", False),
        ("auto", "cpu", ("xpu", 1), "xpu:0", False),  # the kernel's files showed nothing
        ("auto", "cpu", ("mps", 1), "mps", False),
        ("auto", "cuda:0", None, "cpu", True),  # a driver that is too old
        ("auto", "cpu", None, "cpu", False),
        ("cuda:1", "cuda:1", ("cuda", 2), "cuda:1", False),
        ("cpu", "cpu", ("cuda", 2), "cpu", False),
    ],
)
def test_torch_has_the_last_word(
    wanted: str,
    expected: str,
    offered: tuple[str, int] | None,
    name: str,
    noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "may_have_accelerator", lambda: True)
    monkeypatch.setattr(devices, "offered_device", lambda: offered)
    found = confirm_device(wanted, expected)
    assert found.name == name and (found.note is not None) == noted
    if found.note:
        assert mentions(found.note, "run.device=auto", "cpu", "cuda:0", "torch")


def test_a_device_by_name_that_torch_does_not_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "may_have_accelerator", lambda: True)
    monkeypatch.setattr(devices, "offered_device", lambda: None)
    with pytest.raises(ConfigError) as caught:
        confirm_device("cuda:0", "cuda:0")
    assert mentions(caught.value.message, "run.device=cuda:0", "torch", "CPU")
    assert mentions(caught.value.hint, "run.device=auto", "run.device=cpu")


def test_torch_is_not_queried_where_it_has_only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "may_have_accelerator", lambda: False)
    monkeypatch.setattr(devices, "offered_device", lambda: pytest.fail("it was asked"))
    assert confirm_device("auto", "cpu").name == "cpu"
