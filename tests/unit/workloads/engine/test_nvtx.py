from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.workloads.engine import nvtx


class RecordingBackend:
    """Stands where the C library stands and writes down what reaches it."""

    name = "recording"

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.calls: list[str] = []

    def push(self, label: str) -> int:
        self.calls.append(f"push {label}")
        return self.answer

    def pop(self) -> None:
        self.calls.append("pop")

    def mark(self, label: str) -> None:
        self.calls.append(f"mark {label}")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[nvtx._State]:
    fresh = nvtx._State()
    fresh.looked = True
    monkeypatch.setattr(nvtx, "_state", fresh)
    yield fresh


def attach(state: nvtx._State, answer: int) -> RecordingBackend:
    backend = RecordingBackend(answer)
    state.backend = backend
    return backend


@pytest.mark.parametrize("answer", [-1, 0, 3])
def test_ranges_reach_an_attached_tool(state: nvtx._State, answer: int) -> None:
    backend = attach(state, answer)
    with nvtx.stage("prefill"):
        nvtx.mark("here")
    with nvtx.stage("decode"):
        pass
    assert backend.calls == ["push prefill", "mark here", "pop", "push decode", "pop"]
    assert nvtx.is_attached()


def test_without_a_tool_the_first_push_is_the_last(state: nvtx._State) -> None:
    backend = attach(state, -2)
    for _ in range(3):
        with nvtx.stage("decode"):
            pass
    nvtx.mark("here")
    assert backend.calls == ["push decode", "pop"]
    assert not nvtx.is_attached()


def test_a_range_is_closed_when_its_body_raises(state: nvtx._State) -> None:
    backend = attach(state, -1)
    with pytest.raises(ValueError, match="body"), nvtx.stage("decode"):
        raise ValueError("body")
    assert backend.calls == ["push decode", "pop"]


def test_asking_for_a_tool_spends_no_range_when_nothing_is_injected(
    state: nvtx._State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    monkeypatch.delenv("NVTX_INJECTION32_PATH", raising=False)
    backend = attach(state, -1)
    assert not nvtx.is_attached()
    assert backend.calls == []


def test_no_library_at_all_is_silent(state: nvtx._State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvtx, "_library_paths", lambda: iter(["/no/such/library.so"]))
    monkeypatch.setattr(nvtx, "_torch_has_cuda", lambda: False)  # a CUDA build of torch has ranges of its own
    state.looked = False
    with nvtx.stage("decode"):
        pass
    nvtx.mark("here")
    assert nvtx.backend_name() is None
    assert not nvtx.is_attached()


def test_a_broken_library_is_passed_over(state: nvtx._State, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes.util

    without_nvtx = ctypes.util.find_library("c") or "libc.so.6"
    monkeypatch.setattr(nvtx, "_library_paths", lambda: iter([without_nvtx]))
    monkeypatch.setattr(nvtx, "_torch_has_cuda", lambda: False)  # a CUDA build of torch has ranges of its own
    state.looked = False
    assert nvtx.backend_name() is None


def test_the_real_library_is_found_and_reports_that_no_tool_listens() -> None:
    pytest.importorskip("torch")  # the wheel that carries the library is a dependency beside torch
    code = (
        "from llm_perf_opt.workloads.engine import nvtx\n"
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "name = nvtx.backend_name()\n"
        "with nvtx.stage('prefill ü'): pass\n"
        "print(name, nvtx._state.attached)\n"
    )
    result = run_probe([sys.executable, "-c", code])
    assert result.ok, result.stderr
    name, attached = result.stdout.rsplit(maxsplit=1)
    if name == "None":
        pytest.skip("no NVTX library is installed")
    assert Path(name).name.startswith(("libnvtx3interop", "libnvToolsExt"))
    assert attached == "False"


def test_the_torch_profiler_sees_stages_while_it_records(state: nvtx._State) -> None:
    torch = pytest.importorskip("torch")
    backend = attach(state, -1)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, nvtx.stage("prefill"):
        torch.ones(4) + 1
    with nvtx.stage("after"):
        pass
    names = {event.key for event in profile.key_averages()}
    assert "prefill" in names
    assert "after" not in names
    assert backend.calls == ["push prefill", "pop", "push after", "pop"]


def test_module_ranges_nest_and_close_and_come_off(state: nvtx._State) -> None:
    torch = pytest.importorskip("torch")

    class Failing(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("inside")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2))])
            self.bad = Failing()

        def forward(self, x, fail=False):
            x = self.layers[0](x)
            return self.bad(x) if fail else x

    backend = attach(state, -1)
    model = Model()
    with nvtx.module_ranges(model):
        model(torch.ones(1, 2))
        assert backend.calls == [
            "push module:layers.0",
            "push module:layers.0.0",
            "pop",
            "pop",
        ]
        backend.calls.clear()
        with pytest.raises(RuntimeError, match="inside"):
            model(torch.ones(1, 2), fail=True)
        assert backend.calls.count("pop") == sum(call.startswith("push") for call in backend.calls)
        assert "push module:bad" in backend.calls
    backend.calls.clear()
    model(torch.ones(1, 2))
    assert backend.calls == []


def test_names_survive_what_c_strings_do_not() -> None:
    assert nvtx._encode("a\0b") == b"a b"
    assert nvtx._encode("\udcff") == b"?"
    assert nvtx._encode("ü") == "ü".encode()
