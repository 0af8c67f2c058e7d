"""The notebooks in ``examples/notebooks`` run from the first cell to the last, as in Jupyter but without it."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"


def run_cells(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    """Run the code cells in one namespace; return it, and the value of each cell that ends with an expression."""
    document = json.loads(notebook.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    shown: list[Any] = []
    for number, cell in enumerate(document["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{notebook.name}[{number}]", "exec"), names)
        if isinstance(last, ast.Expr):
            expression = compile(ast.Expression(last.value), f"{notebook.name}[{number}]", "eval")
            shown.append(eval(expression, names))
    return names, shown


def test_there_is_a_notebook_and_it_stores_no_output() -> None:
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert found
    for notebook in found:
        document = json.loads(notebook.read_text())
        assert document["nbformat"] == 4
        assert all(not cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code")


def test_the_notebook_loads_plots_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names, shown = run_cells(NOTEBOOKS / "compare_runs.ipynb")
    assert names["a"].summary.timings.tpot_s.median == pytest.approx(0.70 / 64)
    table = next(value for value in shown if hasattr(value, "height"))
    assert table.height == 3
    chart = next(value for value in shown if hasattr(value, "_repr_svg_"))
    assert chart._repr_svg_().count("<rect") == len(chart.values) > 0
    ratios = shown[-1]
    assert ratios["tpot"] == pytest.approx(0.55 / 0.70, rel=1e-3)
    assert (tmp_path / names["WORK"].name / "comparison" / "comparison.html").is_file()
