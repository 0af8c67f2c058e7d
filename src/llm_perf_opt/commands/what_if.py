"""``llm-perf-opt what-if``: expected times and floors of a counted model on chosen devices, from a finished run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.console.command_line import verb_parser, whole_number
from llm_perf_opt.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from llm_perf_opt.analysis.roofline.demand import Point
    from llm_perf_opt.hardware.catalogue import Catalogue, Device
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.summary import Static, Summary, WhatIf

MOST_TOKENS = 100_000_000
MOST_RANKS = 1024
MOST_ROWS = 2000
"""Of one answer: a minute's work."""
FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""Whose kernels the tables time; the default first."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: every combination of the lists; an empty list means the run's own value."""

    devices: Sequence[str]
    dtypes: Sequence[str]
    batch_sizes: Sequence[int]
    prompts: Sequence[int]
    contexts: Sequence[int]
    tensor_parallel: Sequence[int]
    framework: str


def main(arguments: Sequence[str]) -> int:
    """Price a model elsewhere; return the exit code."""
    options = _parser().parse_args(arguments)
    question = Question(
        options.device or [],
        options.dtype or [],
        options.batch or [],
        options.prompt or [],
        options.context or [],
        options.tensor_parallel or [],
        options.framework,
    )
    return answer(options.run, question, catalogue_file=options.catalogue, as_json=options.json)


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "what-if",
        "Estimate a run's model (expected times and roofline floors) on other devices, data types, batch sizes, lengths and ranks.\n"
        "Separate list items with commas; every combination is estimated. Expected times need the extra 'silicon'.",
    )
    parser.add_argument("run", type=Path, help="run directory with a static analysis, or a summary.json")
    parser.add_argument(
        "--device",
        type=_names,
        metavar="NAMES",
        help="devices of the catalogue (default: all with measured tables)",
    )
    parser.add_argument(
        "--dtype", type=_names, metavar="TYPES", help="data types of the weights: bfloat16,float8,float4"
    )
    number = _numbers(1, MOST_TOKENS)
    parser.add_argument("--batch", type=number, metavar="N,N", help="sequences per step")
    parser.add_argument("--prompt", type=number, metavar="N,N", help="prompt tokens")
    parser.add_argument(
        "--context", type=number, metavar="N,N", help="cached tokens at the decode step (default: the prompt)"
    )
    parser.add_argument(
        "--tensor-parallel",
        type=_numbers(1, MOST_RANKS),
        metavar="N,N",
        help="devices that share every layer",
    )
    parser.add_argument(
        "--framework",
        default=FRAMEWORKS[0],
        choices=FRAMEWORKS,
        metavar="NAME",
        help=f"preferred framework of the measured kernels: {', '.join(FRAMEWORKS)}",
    )
    parser.add_argument("--catalogue", type=Path, metavar="FILE", help="your own devices (docs/hardware.md)")
    parser.add_argument(
        "--json", action="store_true", help="print rows and tables as what_if and silicon of summary.json"
    )
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(least: int, most: int) -> Callable[[str], list[int]]:
    number = whole_number(least, most)

    def numbers(text: str) -> list[int]:
        return [number(part) for part in text.split(",")]

    numbers.__name__ = "list of numbers"
    return numbers


def answer(run: Path, question: Question, *, catalogue_file: Path | None, as_json: bool) -> int:
    """Print the table of a question, or its rows as JSON."""
    from llm_perf_opt.hardware.catalogue import load_catalogue
    from llm_perf_opt.hardware.silicon import open_silicon
    from llm_perf_opt.summary.file import load_summary

    summary = load_summary(run)
    catalogue = load_catalogue(catalogue_file)
    silicon = open_silicon(catalogue)
    rows = priced(summary, question, catalogue, silicon)
    if as_json:
        from llm_perf_opt.analysis.roofline.expected_times import silicon_use
        from llm_perf_opt.summary.codec import to_plain

        used = silicon_use(silicon, question.framework)
        print(json.dumps({"what_if": to_plain(rows), "silicon": to_plain(used)}, indent=2))
        return 0
    _print(summary, rows, silicon, question.framework)
    return 0


def priced(
    summary: Summary, question: Question, catalogue: Catalogue, silicon: Silicon | None
) -> list[WhatIf]:
    """Return one row per device and point of a question."""
    from llm_perf_opt.analysis.roofline.expected_times import tables_of
    from llm_perf_opt.analysis.roofline.launches import started_in
    from llm_perf_opt.analysis.roofline.what_if import price

    static = summary.static
    if static is None:
        raise InputError(
            f"run {summary.run.id} has no static model",
            hint="run it with pipeline.static_analysis.enable=true (no weights, no GPU needed)",
        )
    tables = tables_of(silicon, question.framework)
    points = _points(static, summary.workload.dtype, question)
    devices = _devices(question.devices, catalogue, silicon)
    if len(points) * len(devices) > MOST_ROWS:
        raise ConfigError(
            f"{len(points)} points on {len(devices)} devices are {len(points) * len(devices)} rows; at most {MOST_ROWS}",
            hint="name fewer devices (--device), batch sizes, lengths or types",
        )
    return price(static, devices, points, started=started_in(summary, tables), tables=tables)


def _points(static: Static, dtype: str | None, question: Question) -> list[Point]:
    from llm_perf_opt.analysis.roofline.demand import own_point
    from llm_perf_opt.core.units import canonical_dtype, dtype_bytes, known_dtypes

    base = own_point(static, dtype)
    if base is None:
        raise InputError(
            "the static model has no decode step, or the run no data type",
            hint="count a model that generates",
        )
    moved = question.dtypes or question.batch_sizes or question.prompts or question.contexts
    if moved and static.scaling is None:
        raise InputError(
            "this model was not counted in a way that scales, so only its own point can be priced",
            hint="leave --dtype, --batch, --prompt and --context out",
        )
    for name in question.dtypes:
        if dtype_bytes(name) is None:
            raise ConfigError(f"--dtype {name}: not a data type", hint=f"one of: {', '.join(known_dtypes())}")
    kinds = [canonical_dtype(name) for name in question.dtypes] or [base.dtype]
    lengths = _lengths(base, question)
    return [
        replace(
            base,
            dtype=kind,
            compute_dtypes=base.compute_dtypes if kind == base.dtype else (),
            batch_size=batch,
            prompt_tokens=prompt,
            context_tokens=context,
            tensor_parallel=ranks,
        )
        for ranks in question.tensor_parallel or [1]
        for kind in kinds
        for prompt, context in lengths
        for batch in question.batch_sizes or [base.batch_size]
    ]


def _lengths(base: Point, question: Question) -> list[tuple[int, int]]:
    """Return (prompt, context): both as given, one following the other where only one is."""
    if question.prompts and question.contexts:
        return [(prompt, context) for prompt in question.prompts for context in question.contexts]
    if question.prompts or question.contexts:
        return [(length, length) for length in question.prompts or question.contexts]
    return [(base.prompt_tokens, base.context_tokens)]


def _devices(names: Sequence[str], catalogue: Catalogue, silicon: Silicon | None) -> list[Device]:
    from llm_perf_opt.analysis.roofline.what_if import FOCUS

    if not names:
        chosen = [one for one in catalogue.devices if silicon is not None and silicon.system(one.name)]
        return chosen or [one for one in catalogue.devices if one.name in FOCUS]
    found = []
    for name in names:
        try:
            found.append(catalogue.named(name))
        except ConfigError as error:
            hint = (error.hint or "").replace("hardware.catalogue=FILE", "--catalogue FILE")
            raise ConfigError(f"--device {name}: not in the catalogue", hint=hint) from error
    return found


def _print(summary: Summary, rows: Sequence[WhatIf], silicon: Silicon | None, framework: str) -> None:
    from llm_perf_opt.analysis.roofline.expected_times import silicon_use
    from llm_perf_opt.reporting.detail_tables import priced_table
    from llm_perf_opt.reporting.markdown import render_table
    from llm_perf_opt.reporting.wording import describe_times, title_of

    used = silicon_use(silicon, framework)
    expects = any(row.tpot_expected_s is not None for row in rows)
    counted = summary.static is not None and summary.static.operators is not None
    launched = next((row for row in rows if row.eager_host_s is not None), None)
    print(f"{title_of(summary)}: {describe_times(used, expects=expects, counted=counted, row=launched)}\n")
    print(render_table(priced_table(rows)))
    for problem in used.problems:
        print(f"note: {problem}")
