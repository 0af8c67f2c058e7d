#!/usr/bin/env python3
"""Would the tests notice? Change one operator or number of `src/llm_perf_opt/analysis` at a time and run its tests.

    python scripts/mutation-run.py analysis/ledger.py             # every mutant of one module
    python scripts/mutation-run.py analysis/findings --most 25    # 25 mutants of each module below a folder
    python scripts/mutation-run.py analysis/ledger.py --list      # show the mutants, run nothing

On demand, not in CI: a mutant takes a second or more, a module has about sixty. The checkout is not touched: a copy
of `src` is mutated, and the tests run against it. First, all unit tests that import the analysis run once, traced, so
that a mutant meets the tests that execute its line; one that lives through these meets their whole files.
The time limit of a mutant is processor time, so a busy machine does not turn a survivor into a kill.
docs/mutation-testing.md says what survived and why.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "llm_perf_opt"
LIMIT_S, MOST_IDS = 60, 400  # processor time of one run of tests; tests that are named one by one
Change = Callable[[ast.AST], None]
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TRACER = """
import json, os, sys
PREFIX, LINES, CURRENT = os.environ["MUTATION_PREFIX"], {}, None
def inside(frame, event, argument):
    LINES.setdefault(frame.f_code.co_filename, {}).setdefault(frame.f_lineno, {})[CURRENT] = None
    return inside
def enter(frame, event, argument):
    return inside(frame, event, argument) if CURRENT and frame.f_code.co_filename.startswith(PREFIX) else None
def pytest_runtest_logstart(nodeid):
    global CURRENT
    CURRENT = nodeid
    sys.settrace(enter)
def pytest_sessionfinish():
    json.dump(LINES, open(os.environ["MUTATION_LINES"], "w"))
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    text: str
    number: int  # which node, in the order of ast.walk
    change: Change
    line: int
    words: str

    def source(self) -> str:
        """Return the module with the change in place."""
        tree = ast.parse(self.text)
        self.change(next(itertools.islice(ast.walk(tree), self.number, None)))
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every single change of a module; annotations, decorators and ``zip(strict=)`` are left alone."""
    tree, lines, skipped = ast.parse(text), text.splitlines(), set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        parts += [node.value] if isinstance(node, ast.keyword) and node.arg == "strict" else []
        skipped |= {one for part in parts if part is not None for one in ast.walk(part)}
    for number, node in enumerate(ast.walk(tree)):
        for words, change in () if node in skipped else changes(node):
            where = f"{words}, column {node.col_offset}: {lines[node.lineno - 1].strip()}"
            yield Mutant(text, number, change, node.lineno, where)


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Yield what can be changed at one node: operators, comparisons, and/or, not, numbers, returned values."""

    def put(name: str, value: object) -> Change:
        return lambda found: setattr(found, name, value)

    def operator(old: ast.AST) -> str:
        return f"{type(old).__name__} → {OPERATORS[type(old)].__name__}"

    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        yield operator(node.op), put("op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Compare):
        for k, old in enumerate(node.ops):
            ops = [OPERATORS[type(one)]() if n == k else one for n, one in enumerate(node.ops)]
            yield operator(old), put("ops", ops)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"{type(node.op).__name__} removed", put("operand", ast.UnaryOp(type(node.op)(), node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} → {not node.value}", put("value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} → {node.value + 1}", put("value", node.value + 1)
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "returns None", put("value", ast.Constant(None))


class Bench:
    """A copy of ``src`` and the tests that run against it."""

    def __init__(self, folder: Path) -> None:
        self.source, self.lines = folder / "src", folder / "lines.json"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "mutation_tracer.py").write_text(TRACER)
        # Most of the start of pytest would go into plugins that these tests do not need.
        lean = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
        paths = os.pathsep.join(map(str, (self.source, ROOT, folder)))
        self.environment = {**os.environ, **lean, "PYTHONPATH": paths}

    def trace(self) -> dict[str, dict[int, list[str]]]:
        """Run the unit tests once; return file → line → tests that execute it."""
        unit = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
        importing = [str(p.relative_to(ROOT)) for p in unit if "llm_perf_opt.analysis" in p.read_text()]
        prefix = str(self.source / "llm_perf_opt" / "analysis")
        traced = {"MUTATION_PREFIX": prefix, "MUTATION_LINES": str(self.lines)}
        if code := self.pytest(importing, traced, "-p", "mutation_tracer"):
            sys.exit(f"the tests must pass without a mutant (pytest ended with {code})")
        found = json.loads(self.lines.read_text())
        return {file: {int(n): list(tests) for n, tests in rows.items()} for file, rows in found.items()}

    def killed(self, path: Path, mutant: Mutant, tests: list[str]) -> bool:
        """Tell whether a test fails, or does not come to an end, with the mutant in place."""
        path.write_text(mutant.source())
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        files = list(dict.fromkeys(one.partition("::")[0] for one in tests))
        steps = [files] if tests == files or len(tests) > MOST_IDS else [tests, files]
        # 4 and 5: pytest did not find tests of these names; 1, 2 and signals: a failure, or a broken import.
        codes = (self.pytest(step, {"PYTHONDONTWRITEBYTECODE": "1"}, "-x", limit_s=LIMIT_S) for step in steps)
        return any(code not in (0, 4, 5) for code in codes)

    def pytest(self, tests: list[str], extra: dict[str, str], *options: str, limit_s: int = -1) -> int:
        plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *options, *tests], check=False, cwd=ROOT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)),  # -1: none
            env={**self.environment, **extra}, capture_output=True, stdin=subprocess.DEVNULL,
        ).returncode  # fmt: skip


def run(bench: Bench, drawn: dict[str, list[Mutant]]) -> None:
    """Run the mutants; print survivors as they are found, and a table at the end."""
    executed, table = bench.trace(), []
    for name, found in drawn.items():
        path = bench.source / "llm_perf_opt" / name
        lines = executed.get(str(path), {})
        everything = list(dict.fromkeys(t.partition("::")[0] for tests in lines.values() for t in tests))
        alive = 0
        for mutant in found:
            # Lines of the module itself run when it is imported, before any test: those meet every file.
            tests = lines.get(mutant.line) or everything
            if not tests or not bench.killed(path, mutant, tests):
                alive += 1
                print(f"  survived {name}:{mutant.line}: {mutant.words}", flush=True)
        path.write_text(found[0].text)
        note = "" if everything else "  no unit test executes it"
        table.append(f"| {name} | {len(found) - alive} | {len(found)} |{note}")
        print(table[-1], flush=True)
    print("\n| module | killed | mutants |\n| --- | --- | --- |", *table, sep="\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("modules", nargs="+", help="files or folders below src/llm_perf_opt")
    options.add_argument("--most", type=int, help="at most this many mutants of a module, drawn at random")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    asked = options.parse_args()
    drawn: dict[str, list[Mutant]] = {}
    for chosen in (PACKAGE / name for name in asked.modules):
        if not chosen.exists():
            options.error(f"no such module: {chosen}")
        for path in sorted(chosen.rglob("*.py")) if chosen.is_dir() else [chosen]:
            found = list(mutants(path.read_text()))
            if asked.most and asked.most < len(found):
                found = random.Random(f"{asked.seed} {path.name}").sample(found, asked.most)
            if found:
                drawn[str(path.relative_to(PACKAGE))] = sorted(found, key=lambda one: (one.line, one.words))
    if asked.list:
        return print("\n".join(f"{name}:{m.line}: {m.words}" for name, ms in drawn.items() for m in ms))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        return run(Bench(Path(folder)), drawn)


if __name__ == "__main__":
    main()
