"""For scripts and notebooks: a finished run as typed values and tables, and one remedy put to the test.

>>> import llm_perf_opt
>>> run = llm_perf_opt.load_run("tmp/runs/20260101-120000")      # doctest: +SKIP
>>> run.summary.timings.tpot_s.shown                             # doctest: +SKIP
0.0091
>>> run.kernels().filter(...)                                    # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from llm_perf_opt.improve.propose import try_remedy
from llm_perf_opt.remedies.data import load_improvement
from llm_perf_opt.summary import Kernel, LedgerRow, Operator, StaticModule, Summary

if TYPE_CHECKING:
    import polars

__all__ = ["Run", "load_improvement", "load_run", "try_remedy"]


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory (or the output of ``ingest``) that was read back."""

    path: Path
    summary: Summary

    def kernels(self) -> polars.DataFrame:
        """Return one row per kernel and phase, counters as columns of their own."""
        return _frame(Kernel, [_flat(kernel, "counters") for kernel in self.summary.kernels], "counters")

    def operators(self) -> polars.DataFrame:
        """Return one row per operator and phase."""
        return _frame(Operator, [dataclasses.asdict(operator) for operator in self.summary.operators])

    def ledger(self) -> polars.DataFrame:
        """Return the module ledger."""
        rows = [
            {k: v for k, v in dataclasses.asdict(row).items() if k != "others_s"}
            for row in self.summary.ledger
        ]
        return _frame(LedgerRow, rows, "others_s")

    def modules(self) -> polars.DataFrame:
        """Return the static module tree, FLOPs and weights of each phase as columns."""
        modules = self.summary.static.modules if self.summary.static is not None else []
        rows = [_flat(module, "flops", "weight_bytes") for module in modules]
        return _frame(StaticModule, rows, "flops", "weight_bytes")


def load_run(path: Path | str) -> Run:
    """Read ``summary.json`` of a run directory; raises :class:`llm_perf_opt.core.errors.InputError` if it cannot."""
    from llm_perf_opt.summary.file import load_summary

    folder = Path(path).expanduser()
    return Run(path=folder, summary=load_summary(folder))


def _flat(value: Any, *nested: str) -> dict[str, Any]:
    """Turn a dataclass into one row; the named dictionaries become columns ``name_key``."""
    row = dataclasses.asdict(value)
    for name in nested:
        for key, item in row.pop(name).items():
            row[f"{name.removesuffix('s')}_{key}" if name == "counters" else f"{name}_{key}"] = item
    return row


def _frame(kind: type, rows: list[dict[str, Any]], *left_out: str) -> polars.DataFrame:
    """Make a table; without rows it has the columns of ``kind`` all the same, so that sorting it is no error."""
    import polars

    if rows:
        return polars.DataFrame(rows, infer_schema_length=None, strict=False)
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in left_out]
    return polars.DataFrame(schema={name: _column_type(hints[name]) for name in names})


def _column_type(annotation: Any) -> Any:
    """Return the type of a column: that of the field, null aside; columns of other fields hold text."""
    import polars

    plain = [part for part in get_args(annotation) if part is not type(None)]
    kind = plain[0] if len(plain) == 1 and get_origin(annotation) in (UnionType, Union) else annotation
    types = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64}
    return types.get(kind, polars.String)
