"""`compare` as a whole: metrics, gates, notes, command line, reports."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.cli import main
from llm_perf_opt.compare.command import parse_arguments
from llm_perf_opt.compare.compare import compare, default_method
from llm_perf_opt.compare.data import Comparison
from llm_perf_opt.compare.gates import parse_gate
from llm_perf_opt.compare.measure import Plan, command, order
from llm_perf_opt.compare.page import comparison_console, comparison_html, comparison_markdown
from llm_perf_opt.compare.work import CAPTURED_PART
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.units import format_signed_percent
from llm_perf_opt.summary import LedgerRow, Summary, Utilisation, Workload
from llm_perf_opt.summary.codec import json_schema, to_plain
from llm_perf_opt.summary.file import save_summary
from tests.unit.summaries import budget, kernel, summary, timings, verdict

NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)


def document(factor: float = 1.0, samples: int = 3, repeats: int = 6, **changes: Any) -> dict[str, Any]:
    """Timings of an engine: sample k takes k + 1 seconds, with a little noise."""
    rows = []
    for number in range(samples):
        passes = [
            {
                "prefill_s": 0.1 * (number + 1) * NOISE[k % 6],
                "decode_s": factor * (number + 1) * NOISE[(k + number) % 6],
                "token_s": [],
                "components": {"lm_head_prefill_s": 0.01 * (number + 1)},
            }
            for k in range(repeats)
        ]
        rows.append(
            {"id": f"s{number}", "new_tokens": 11, "batch_size": 1, "prompt_tokens": 8, "repeats": passes}
        )
    return {"schema": 1, "workload": {"model": "tiny"}, "samples": rows, **changes}


def timed(**fields: Any) -> Summary:
    return summary(
        timings=timings(prefill=0.2, decode=2.0), workload=Workload(samples=3, new_tokens=11.0), **fields
    )


def side(name: str, *documents: dict[str, Any] | None, summaries: list[Summary] | None = None) -> Side:
    summaries = summaries or [timed() for _ in documents]
    return Side(name, [name], summaries, list(documents))


def metrics(result: Comparison) -> dict[str, Any]:
    return {row.name: row for row in result.metrics}


def test_a_clear_slowdown_of_decode_is_seen_and_nothing_else() -> None:
    found = metrics(compare(side("a", document()), side("b", document(1.2))))
    assert found["decode"].outcome == found["tpot"].outcome == "worse"
    assert found["tpot"].ratio == pytest.approx(1.2, rel=0.02)
    assert found["tpot"].low_ratio > 1.1
    assert found["tokens_per_s"].outcome == "worse"
    assert found["tokens_per_s"].ratio == pytest.approx(1 / 1.2, rel=0.02)
    assert found["prefill"].outcome == "no difference shown"
    assert found["tpot"].a == pytest.approx(0.2, rel=0.02)
    back = metrics(compare(side("b", document(1.2)), side("a", document())))
    assert back["tpot"].outcome == back["tokens_per_s"].outcome == "better"


def test_identical_sides_show_no_difference() -> None:
    result = compare(side("a", document()), side("b", document()), [parse_gate("tpot:+0%")])
    assert {row.outcome for row in result.metrics} == {"no difference shown"}
    assert result.gates[0].status in ("passed", "undecided")
    assert to_plain(result) == to_plain(
        compare(side("a", document()), side("b", document()), [parse_gate("tpot:+0%")])
    )


@pytest.mark.parametrize(
    ("factor", "gate", "status"),
    [
        (1.2, "tpot:+3%", "regression"),
        (1.2, "tokens_per_s:-3%", "regression"),
        (1.2, "tpot:+30%", "passed"),
        (1.028, "tpot:+3%", "undecided"),
        (0.8, "tpot:+3%", "passed"),
        (0.8, "tokens_per_s:-3%", "passed"),
        (1.2, "prefill:+5%", "passed"),
        (1.2, "vision:+5%", "not enough data"),
        (1.2, "component.lm_head_prefill:+1%", "passed"),
    ],
)
def test_gates(factor: float, gate: str, status: str) -> None:
    result = compare(side("a", document()), side("b", document(factor)), [parse_gate(gate)])
    assert result.gates[0].status == status, result.gates[0].reason
    assert result.gates[0].reason


@pytest.mark.parametrize("rounds", [3, 5])
def test_gates_over_rounds(rounds: int) -> None:
    a = side("a", *(document(repeats=1) for _ in range(rounds)))
    b = side("b", *(document(1.3, repeats=1) for _ in range(rounds)))
    (gate,) = compare(a, b, [parse_gate("tpot:+3%")]).gates
    assert gate.status == ("regression" if rounds == 5 else "not enough data")
    assert "rounds" in gate.reason


def test_captures_without_repeats_cannot_fail_a_gate() -> None:
    slow = summary(kernels=[kernel("gemm", "gemm", 9.0)])
    result = compare(
        side("a", None, summaries=[summary(kernels=[kernel("gemm", "gemm", 1.0)])]),
        side("b", None, summaries=[slow]),
        [parse_gate("kernel_time:+3%")],
    )
    assert result.gates[0].status == "not enough data"
    assert result.gates[0].ratio == 9.0
    rounds = [summary(kernels=[kernel("gemm", "gemm", 1.0)]) for _ in range(5)]
    slower = [summary(kernels=[kernel("gemm", "gemm", 9.0)]) for _ in range(5)]
    decided = compare(
        side("a", *[None] * 5, summaries=rounds),
        side("b", *[None] * 5, summaries=slower),
        [parse_gate("kernel_time:+3%")],
    )
    assert decided.gates[0].status == "regression"


@pytest.mark.parametrize(
    "text", ["tpot", "tpot:3", "tpot:+x%", "tpot+3%", ":+3%", "tpot:+3%%", "speed:+3%", "tpot:-3%", "tokens_per_s:+3%", "tokens_per_s:-100%", "component.:+3%", ""]
)  # fmt: skip
def test_bad_gates_are_configuration_errors(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gate(text)
    assert caught.value.exit_code == 2
    assert main(["compare", "/nowhere/a", "/nowhere/b", "--gate", text]) == 2
    assert "error:" in capsys.readouterr().err


def test_a_component_nobody_has_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"component\.sam"):
        compare(side("a", document()), side("b", document()), [parse_gate("component.sam:+3%")])


def test_values_are_those_of_the_report(tmp_path: Path) -> None:
    """One repeat that stalled changes neither; the time per token and that to the first one add up to the answer."""
    stalled = document()
    for sample in stalled["samples"]:
        sample["repeats"][0]["decode_s"] *= 40
        for repeat in sample["repeats"]:
            repeat["token_s"] = [0.1, 0.1, 0.1, 9.0]
    found = metrics(compare(side("a", stalled), side("b", stalled)))
    path = tmp_path / "timings.json"
    path.write_text(json.dumps(stalled))
    timings = load_timings(path).timings
    for name in ("prefill", "ttft", "decode", "tpot", "tokens_per_s"):
        shown = getattr(timings, name if name == "tokens_per_s" else f"{name}_s").shown
        assert found[name].a == pytest.approx(shown, rel=2e-3), name
    assert found["total"].a == pytest.approx(timings.ttft_s.shown + 10 * timings.tpot_s.shown, rel=0.01)


def test_samples_pair_by_id_and_strangers_are_named() -> None:
    fewer = document(samples=2)
    result = compare(side("a", document()), side("b", fewer))
    (note,) = [note for note in result.notes if "s2" in note]
    assert re.search(r"\bA\b", note) and re.findall(r"\b\d+\b", note) == ["1"]
    assert "s0" not in note and "s1" not in note
    assert note not in compare(side("a", fewer), side("b", document())).notes, "it says on which side"
    assert {row.sample for row in result.samples} == {"s0", "s1"}
    assert metrics(result)["decode"].ratio == pytest.approx(1.0, abs=0.02)


def test_notes_list_what_weakens_the_comparison() -> None:
    other = timed()
    other.workload.new_tokens = 20.0
    result = compare(side("a", document()), side("b", document(), summaries=[other]))
    assert any("compare --run" in note for note in result.notes)
    assert any("tokens" in note and "decode" in note for note in result.notes)
    assert [(d.what, d.a, d.b) for d in result.differences] == [("new tokens", "11", "20")]
    both = compare(side("a", document()), side("b", document()))
    medians = compare(side("a", None), side("b", document()))
    assert any("interval" in note for note in set(medians.notes) - set(both.notes))
    assert metrics(both)["decode"].low_ratio is not None and metrics(medians)["decode"].low_ratio is None


def test_phases_and_modules_are_laid_side_by_side() -> None:
    a, b = timed(), timed()
    a.verdicts, b.verdicts = {"decode": verdict("launch")}, {"decode": verdict("memory")}
    a.budget = {"decode": budget(1.0, compute=0.4, launch=0.6)}
    b.budget = {"decode": budget(0.5, compute=0.8, launch=0.2)}
    a.utilisation, b.utilisation = (
        {"decode": Utilisation(mbu_ratio=0.1)},
        {"decode": Utilisation(mbu_ratio=0.3)},
    )
    a.ledger = [
        LedgerRow("model", "decode", measured_s=1.0, measured_source="hooks"),
        LedgerRow("gone", "decode", measured_s=1.0),
    ]
    b.ledger = [LedgerRow("model", "decode", measured_s=0.5, measured_source="timeline")]
    result = compare(side("a", None, summaries=[a]), side("b", None, summaries=[b]))
    rows = {(row.phase, row.what): row for row in result.phases}
    (verdicts,) = [(row.phase, row.a, row.b) for row in result.phases if row.unit == ""]
    assert verdicts == ("decode", "launch", "memory")
    assert rows["decode", "MBU"].ratio == pytest.approx(3.0)
    assert rows["decode", f"{CAPTURED_PART}launch"].ratio == pytest.approx(0.1 / 0.6)
    model, gone = result.modules
    assert model.source == "hooks against timeline"
    assert model.ratio is None  # not the same kind of time
    assert (gone.module, gone.b_s) == ("gone", None)


HOSTILE = "<script>alert(1)</script>|`x`[y](javascript:1)\n# head"


def hostile() -> Comparison:
    bad = timed(kernels=[kernel(HOSTILE, "gemm", 1.0)], ledger=[LedgerRow(HOSTILE, "decode", measured_s=1.0)])
    bad.workload.model = HOSTILE
    bad.hardware.name = HOSTILE
    return compare(
        side(HOSTILE, document(), summaries=[bad]), side("b", document()), [parse_gate("tpot:+3%")]
    )


def test_reports_are_escaped_and_complete() -> None:
    result = hostile()
    html = comparison_html(result)
    assert "<script>alert(1)</script>" not in html
    assert "http://" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "https://" not in html
    (gates,) = re.findall(r'<div class="table" id="table-gates">.*?</table>', html, re.S)
    assert ">tpot</th>" in gates and result.gates[0].reason in html
    page = comparison_markdown(result)
    assert "<script>" not in page.replace("`<script>", "")
    assert "\n# head" not in page
    for heading in ("## Gates", "## Metrics", "## Modules", "## Kernels"):
        assert heading in page
    assert str(result.method.seed) in page and str(result.method.resamples) in page
    assert "\n# head" not in comparison_console(result)


def test_json_follows_its_schema() -> None:
    import jsonschema

    jsonschema.validate(to_plain(hostile()), json_schema(Comparison))


# the command line


def save(folder: Path, name: str, factor: float = 1.0, **fields: Any) -> Path:
    run = folder / name
    (run / "direct_inference").mkdir(parents=True)
    (run / "direct_inference" / "timings.json").write_text(json.dumps(document(factor, **fields)))
    save_summary(timed(), run)
    return run


def test_two_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = save(tmp_path, "a"), save(tmp_path, "b", 1.2)
    out = tmp_path / "out"
    assert (
        main(["compare", str(a), str(b), "--gate", "tpot:+3%", "--gate", "ttft:+5%", "--out", str(out)]) == 1
    )
    output = capsys.readouterr().out
    assert re.search(r"tpot.*\+20\.\d %.*worse", output)
    assert re.search("tpot.*regression", output) and not re.search("ttft.*regression", output)
    assert {path.name for path in out.iterdir()} == {"comparison.json", "comparison.md", "comparison.html"}
    assert main(["compare", str(a), str(b)]) == 0
    assert main(["compare", str(b), str(a), "--gate", "tpot:+3%", "-q"]) == 0
    assert re.search("tpot.*passed", capsys.readouterr().out)


def test_json_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = save(tmp_path, "a"), save(tmp_path, "b", 1.2)
    assert main(["compare", str(a), str(b), "--gate", "tpot:+3%", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["gates"][0]["status"] == "regression"
    assert found["method"]["seed"] == dataclasses.asdict(default_method())["seed"]
    assert main(["compare", str(a), str(tmp_path / "absent"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"] == "input"


def test_undecided_gates_warn_and_strict_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = save(tmp_path, "a", repeats=1, samples=1), save(tmp_path, "b", 1.5, repeats=1, samples=1)
    assert main(["compare", str(a), str(b), "--gate", "tpot:+3%"]) == 0
    assert re.search("warning.*tpot", capsys.readouterr().err)
    assert main(["compare", str(a), str(b), "--gate", "tpot:+3%", "--strict"]) == 1


def test_folders_of_runs_pair_in_the_order_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        save(tmp_path / "a", f"{number:03d}", repeats=1)
        save(tmp_path / "b", f"{number:03d}", 1.3, repeats=1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--gate", "tpot:+3%", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["a"]["runs"] == 6
    assert {row["blocks"] for row in found["metrics"] if row["name"] == "tpot"} == {"rounds"}


def test_wrong_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = save(tmp_path, "a")
    assert main(["compare", str(a)]) == 2
    assert main(["compare", "--run", "model=llama_tiny"]) == 2
    assert main(["compare", str(a), "--run", "x=1", "--", "x=2"]) == 2  # a run is not an override
    (tmp_path / "file").write_text("x")
    assert main(["compare", str(a), str(a), "--out", str(tmp_path / "file")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(a), str(tmp_path / "empty")]) == 3
    assert main(["compare", str(a), str(tmp_path / "file")]) == 3
    broken = save(tmp_path, "broken")
    (broken / "direct_inference" / "timings.json").write_text('{"samples": [1]}')
    assert main(["compare", str(a), str(broken)]) == 3
    assert (
        main(
            [
                "compare",
                "--rounds",
                "1",
                "--out",
                str(tmp_path / "o"),
                "--run",
                "run.repeat=1",
                "--",
                "run.repeats=2",
            ]
        )
        == 2
    )
    assert not (tmp_path / "o").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_options_may_be_anywhere() -> None:
    options = parse_arguments(
        ["model=llama_tiny", "--rounds", "5", "--run", "model.dtype=float32", "--gate", "tpot:+3%", "--", "model.dtype=bfloat16", "--json"]
    )  # fmt: skip
    assert options.common == ["model=llama_tiny"]
    assert options.overrides_a == ["model.dtype=float32"]
    assert options.overrides_b == ["model.dtype=bfloat16"]
    assert (options.rounds, options.gate, options.json) == (5, ["tpot:+3%"], True)
    empty = parse_arguments(["--run", "--", "run.repeats=2"])
    assert (empty.overrides_a, empty.overrides_b) == ([], ["run.repeats=2"])


def test_runs_take_turns_so_that_drift_meets_both_sides() -> None:
    turns = order(4)
    assert [letter for _, letter in turns] == list("abbaabba")
    assert [number for number, _ in turns] == [0, 0, 1, 1, 2, 2, 3, 3]
    places = {letter: [place for place, (_, who) in enumerate(turns) if who == letter] for letter in "ab"}
    assert sum(places["a"]) == sum(places["b"])


def test_the_users_overrides_win_over_the_defaults(tmp_path: Path) -> None:
    plan = Plan(["pipeline.torch_profiler.enable=true"], ["a=1"], ["b=2"], 2, 60.0)
    argv = command(plan, "b", tmp_path / "x y")
    assert "pipeline.torch_profiler.enable=false" not in argv
    assert "pipeline.torch_profiler.enable=true" in argv
    assert "b=2" in argv
    assert "a=1" not in argv
    assert argv[-1].startswith("artifacts.runs_dir=")
    assert argv[1:4] == ["-m", "llm_perf_opt", "run"]


def test_passes_measured_in_turns_are_pairs() -> None:
    """Repeat k of both sides met the same machine, however much that changed from repeat to repeat."""
    machine = (1.0, 3.0, 0.5, 2.0, 5.0, 1.5, 0.7)

    def shaken(factor: float) -> dict[str, Any]:
        found = document(factor, repeats=len(machine), interleaved="one")
        for sample in found["samples"]:
            for repeat, load in zip(sample["repeats"], machine, strict=True):
                repeat["decode_s"] *= load
        return found

    gates = [parse_gate("decode:+3%")]
    paired = compare(side("a", shaken(1.0)), side("b", shaken(1.1)), gates)
    assert metrics(paired)["decode"].blocks == "rounds"
    assert paired.gates[0].status == "regression"
    assert not any("compare --run" in note for note in paired.notes)
    apart = compare(side("a", shaken(1.0)), side("b", {**shaken(1.1), "interleaved": "two"}), gates)
    assert metrics(apart)["decode"].blocks == "repeats"
    assert apart.gates[0].status == "undecided"
    assert any("compare --run" in note for note in apart.notes)


def test_comparing_changes_neither_side() -> None:
    a, b = side("a", document()), side("b", document(1.1))
    before = copy.deepcopy((a.documents, to_plain(a.first)))
    compare(a, b)
    assert (a.documents, to_plain(a.first)) == before


def test_the_page_draws_intervals_causes_and_pairs() -> None:
    result = compare(side("A", document()), side("B", document(1.5)))
    page = comparison_html(result)
    assert page.count("<title id=") >= 5
    assert page.count(' lpo-waterfall"') == 2, "one waterfall, for a desk and a phone"
    sections = dict(re.findall(r'<section id="([\w-]+)">(.*?)</section>', page, re.S))
    assert "lpo-dots" in sections["metrics"] and "lpo-waterfall" in sections["why-0"]
    assert sections["samples"].count("lpo-dots") == 6, (
        "whole answer, first token and each token, for a desk and a phone"
    )
    described, _ = re.findall(r"<desc[^>]*>(.*?)</desc>", sections["metrics"], re.S)
    tpot = metrics(result)["tpot"]
    assert tpot.outcome == "worse" and "worse" in described
    for ratio in (tpot.ratio, tpot.low_ratio, tpot.high_ratio):
        assert format_signed_percent(ratio) in described
    shown = comparison_markdown(result)
    (why,) = result.conclusions
    total = metrics(result)["total"]
    assert (why.a_s, why.b_s) == (total.a, total.b), "the ends of the waterfall are in the table"
    for cause in why.causes:
        assert re.search(
            rf"\| {cause.name} \| {units.seconds(cause.a_s)} \| {units.seconds(cause.b_s)} \|", shown
        )
    assert all(shown.count(f"| `{name}` |") == 3 for name in ("s0", "s1", "s2"))
