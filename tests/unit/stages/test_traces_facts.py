"""Several torch traces together: the recording of graphs names the work of the run, ranks add up."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.stages.torch_profiler.facts import traces_facts
from tests.text_facts import mentions
from tests.unit.analysis.operators.test_graph_join import launch, recorded_with_names
from tests.unit.kineto_traces import annotation, document, kernel, op, write


def run_of_graphs(folder: Path) -> Path:
    """Two graph launches of two kernels each, inside an operator that has nothing to do with them."""
    events = [
        annotation("execute_context_0(0)_generation_4(4)", 0, 50),
        op("aten::copy_", 5, 40),
        launch("hipGraphLaunch", 10, 1),
        launch("hipGraphLaunch", 20, 2),
        *(
            kernel(name, 100 + 10 * place, 8, 1 + place // 2)
            for place, name in enumerate(["norm", "gemm"] * 2)
        ),
    ]
    return write(folder / "run.json", document(events))


def test_a_recording_names_the_kernels_of_the_run(tmp_path: Path) -> None:
    recording, run = recorded_with_names(tmp_path), run_of_graphs(tmp_path)
    for order in ([recording, run], [run, recording]):
        facts = traces_facts(order)
        assert len(facts.captures) == 1, "the recording says nothing of time"
        assert {(one.name, one.phase): (one.calls, one.self_device_s) for one in facts.operators} == {
            ("aten::mm", "decode"): (2, 16e-6),
            ("aten::rms_norm", "decode"): (2, 16e-6),
            ("aten::copy_", "decode"): (1, 0.0),
        }
        assert any(mentions(note, "2", "100 %") for note in facts.notes)
        assert set(facts.sources["trace"]) == {recording, run}


def test_operators_of_two_runs_add_up(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    facts = traces_facts([run_of_graphs(tmp_path / "a"), run_of_graphs(tmp_path / "b")])
    assert [(one.name, one.calls) for one in facts.operators] == [("aten::copy_", 2)]
    assert len(facts.captures) == 2
