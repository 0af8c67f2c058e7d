"""SQL over an index, by DuckDB where it is installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.runs.history import store

_MEMORY_LIMIT = "1GB"


def print_query(folder: Path, query: str, *, as_json: bool) -> int:
    """Print the answer as a table, or as a list of JSON objects."""
    names, rows = run_query(folder, query)
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str))
        return 0
    grid = [names, *([one_line("" if value is None else str(value)) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in grid) for index in range(len(names))]
    for line in grid:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def run_query(folder: Path, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Answer a query over the views ``runs``, ``metrics`` and ``findings``."""
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError as error:
        raise ToolError(
            "--sql needs DuckDB, which is not installed", hint='pip install "llm-perf-opt[duckdb]"'
        ) from error
    store.read_info(folder)
    with duckdb.connect(":memory:", config={"memory_limit": _MEMORY_LIMIT}) as connection:
        for file in store.TABLES:
            if not (folder / file).is_file():  # an index of before there were findings
                continue
            name = file.removesuffix(".parquet")
            path = str(folder / file).replace("'", "''")
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        try:
            answer = connection.execute(query)
            names = [column[0] for column in answer.description or ()]
            return names, answer.fetchall()
        except duckdb.Error as error:
            raise ConfigError(
                f"--sql: {str(error).strip()}",
                hint="the tables are runs, metrics and findings; their columns: docs/history.md",
            ) from error
