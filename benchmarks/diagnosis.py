"""Is the diagnosis right? Captures with a known cause of a known size, ingested, and the findings held against them.

    python benchmarks/diagnosis.py                              # all captures, about two minutes
    python benchmarks/diagnosis.py --only straggler --keep tmp/captures
    python benchmarks/diagnosis.py --list                       # what is planted, and how much
    python benchmarks/diagnosis.py --peer-python /tmp/peers/bin/python --json

A simulated host, device and network (``diagnosis_captures/``) make torch traces and nsys exports with one or two
planted causes, and healthy ones. Right is: the planted cause has the largest gain of all findings; its
``gain_upper_s`` is within 20 % of the planted loss; a healthy capture gets no finding of 3 % or more. What a loss is for
each cause is said in ``diagnosis_captures/labels.py``. With ``--peer-python`` (an interpreter that has
HolisticTraceAnalysis, pandas<3 and nsys-ai) what those tools say of the same files stands beside it.

Captures of other classes (one-off costs, too little data, a held queue, a saturated device, unlike jobs), written from
descriptions (``diagnosis_captures/described.py``), are judged by verdict, order, abstention and refusal.

The exit code is 1 below 95 % of top causes, 90 % of gains, or with any false alarm; ``--no-targets`` only prints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.diagnosis_captures.cases import all_cases  # noqa: E402
from benchmarks.diagnosis_captures.described import CASES as DESCRIBED  # noqa: E402
from benchmarks.diagnosis_captures.described import judge_described, write_described  # noqa: E402
from benchmarks.diagnosis_captures.files import ingest_arguments, write_case  # noqa: E402
from benchmarks.diagnosis_captures.labels import Built, Case, build  # noqa: E402
from benchmarks.diagnosis_captures.peers import ask_peer  # noqa: E402
from benchmarks.diagnosis_captures.scoring import (  # noqa: E402
    Outcome,
    Score,
    claims_of,
    false_alarms,
    judge,
    score,
)


def ingest(arguments: list[str], out: Path) -> tuple[int, list[dict[str, object]], str | None]:
    """Run ``llm-perf-opt ingest`` in this process; return exit code, findings, and what went wrong."""
    from llm_perf_opt.cli import main as llm_perf_opt

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = llm_perf_opt(["ingest", *arguments])
    if code:
        return code, [], said.getvalue().strip()[-400:]
    return code, json.loads((out / "summary.json").read_text())["findings"], None


def try_case(case: Case, folder: Path, peer_python: Path | None) -> Outcome:
    """Make one capture, ingest it, judge it."""
    built = build(case)
    files = write_case(case, built, folder / "capture")
    (folder / "label.json").write_text(json.dumps(label(case, built), indent=1))
    out = folder / "ingested"
    code, findings, error = ingest(ingest_arguments(case, files, out), out)
    claims = claims_of(findings)
    outcome = Outcome(case.name, case.format, len(built.ranks), built.span_s, code, claims, error=error)
    if case.healthy:
        outcome.false_alarms = false_alarms(claims, built.span_s)
    else:
        outcome.planted = judge(built.losses_s, claims)
    if peer_python is not None:
        outcome.peer_says = ask_peer(peer_python, case.format, files)
    return outcome


def try_described(pattern: str, folder: Path) -> dict[str, list[str]]:
    """Ingest the captures written from descriptions; return case → what is wrong with the conclusion."""
    found = {}
    for case in DESCRIBED:
        if not re.search(pattern, case.name):
            continue
        out = folder / case.name / "ingested"
        paths = write_described(case, folder / case.name / "capture")
        arguments = [*(word for path in paths for word in ("--trace", str(path))), "--out", str(out)]
        code, _, _ = ingest(arguments, out)
        summary = json.loads((out / "summary.json").read_text()) if not code else None
        found[case.name] = judge_described(case, code, summary)
    return found


def label(case: Case, built: Built) -> dict[str, object]:
    """What was planted, for ``--list`` and ``label.json``."""
    return {
        "case": case.name,
        "format": case.format,
        "ranks": len(built.ranks),
        "of": case.world.ranks,
        "gpu": case.world.gpu.name,
        "span_s": built.span_s,
        "losses_s": built.losses_s,
        "straggler": case.world.straggler,
        "timings": built.timings,
    }


def show_list(cases: list[Case], as_json: bool) -> None:
    """Print the labels."""
    made = [(case, build(case)) for case in cases]
    if as_json:
        print(json.dumps([label(case, built) for case, built in made], indent=1))
        return
    print("| capture | format | ranks | span ms | planted |\n|---|---|---|---|---|")
    for case, built in made:
        causes = ", ".join(
            f"{cause} {seconds * 1e3:.1f} ms ({seconds / built.span_s:.0%} of the span)"
            for cause, seconds in built.losses_s.items()
        )
        ranks = f"{len(built.ranks)} of {case.world.ranks}"
        print(f"| {case.name} | {case.format} | {ranks} | {built.span_s * 1e3:.0f} | {causes or 'healthy'} |")


def show_outcome(outcome: Outcome) -> None:
    """Print one line."""
    if outcome.error is not None:
        text = f"exit code {outcome.exit_code}: {outcome.error.splitlines()[-1] if outcome.error else ''}"
    elif outcome.planted:
        text = "; ".join(
            f"{one.cause} {one.loss_s * 1e3:.1f} ms, claimed {'nothing' if one.claimed_s is None else f'{one.claimed_s * 1e3:.1f} ms'}"
            for one in outcome.planted
        )
        if not outcome.top_right:
            said = ", ".join(f"{one.cause} {(one.gain_s or 0) * 1e3:.1f}" for one in outcome.claims[:3])
            text += f" | first said: {said or 'nothing'}"
    else:
        text = ", ".join(outcome.false_alarms) or "nothing claimed"
    right = outcome.top_right and all(one.gain_right for one in outcome.planted) if outcome.planted else None
    if right is None:
        right = not outcome.false_alarms and outcome.error is None
    peer = f" | peer says: {outcome.peer_says}" if outcome.peer_says else ""
    print(f"{'ok   ' if right else 'WRONG'} {outcome.case:<36} {text}{peer}", flush=True)


def show_score(total: Score) -> None:
    """Print the table."""
    print("\n| cause | n | cause right | gain within 20 % |\n|---|---|---|---|")
    for row in total.rows:
        print(f"| {row.cause} | {row.planted} | {row.found} | {row.gain_right} |")
    print(f"\n{total.captures} captures")
    print(f"top cause right       {total.top_right} of {total.with_cause}")
    print(f"gain within 20 %      {total.gains_right} of {total.gains}")
    print(f"false alarms          {total.alarmed} of {total.healthy} healthy captures")


def main() -> int:
    """Score the diagnosis; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="captures whose name has this in it (a regular expression)",
    )
    parser.add_argument("--list", action="store_true", help="say what is planted, ingest nothing")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep captures, labels and reports here, a folder for each"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--no-targets", action="store_true", help="exit 0 also below the targets")
    parser.add_argument(
        "--peer-python", type=Path, help="an interpreter with HolisticTraceAnalysis, pandas<3 and nsys-ai"
    )
    options = parser.parse_args()
    cases = [case for case in all_cases() if re.search(options.only, case.name)]
    described = [case for case in DESCRIBED if re.search(options.only, case.name)]
    if not cases and not described:
        parser.error(f"no capture is called like {options.only!r}; see --list")
    if options.list:
        show_list(cases, options.json)
        return 0
    outcomes = []
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for case in cases:
            outcomes.append(try_case(case, folder / case.name, options.peer_python))
            if not options.json:
                show_outcome(outcomes[-1])
        conclusions = try_described(options.only, folder)
    total = score(outcomes)
    if options.json:
        print(
            json.dumps(
                {
                    "score": total.document(),
                    "captures": [asdict(one) for one in outcomes],
                    "described": conclusions,
                },
                indent=1,
            )
        )
    else:
        show_score(total)
        for name, wrong in conclusions.items():
            print(f"{'WRONG' if wrong else 'ok   '} {name:<36} {'; '.join(wrong) or 'as described'}")
    missed = total.missed() if cases else []
    missed += [f"{name}: {'; '.join(wrong)}" for name, wrong in conclusions.items() if wrong]
    for problem in missed:
        print(f"MISSED: {problem}", file=sys.stderr)
    return 1 if missed and not options.no_targets else 0


if __name__ == "__main__":
    sys.exit(main())
