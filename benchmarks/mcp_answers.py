"""Time and size of the answers of ``llm-perf-opt mcp``, asked by the SDK's own client over stdio.

    python -m benchmarks.mcp_answers RUNS [--rounds 5] [--record session.jsonl]

RUNS is a directory of finished runs. Every call is made several times; the median time and the size of the structured content
are printed. ``--record`` keeps every call and answer, one JSON document per line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


async def measure(runs: Path, rounds: int, record: Path | None) -> list[tuple[str, float, int]]:
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "llm_perf_opt", "mcp", "--root", str(runs)]
    )
    rows, lines = [], []
    async with Client(stdio_client(server)) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            seconds = []
            for _ in range(rounds):
                began = time.perf_counter()
                result = await client.call_tool(tool, arguments)
                seconds.append(time.perf_counter() - began)
            answer = dict(result.structured_content or {})
            size = len(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode())
            shown = " ".join(
                [tool, *(f"{key}={value}" for key, value in arguments.items() if key == "table")]
            )
            rows.append((shown, statistics.median(seconds), size))
            lines.append({"tool": tool, "arguments": arguments, "seconds": seconds, "answer": answer})
            return answer

        found = (await call("list_runs"))["runs"]["rows"]
        names = [row["run"] for row in found if "problem" not in row]
        for tool in ("summarise_run", "findings"):
            await call(tool, run=names[0])
        for table in ("kernels", "families", "operators", "modules"):
            await call("table", run=names[0], table=table)
        if len(names) > 1:
            await call("compare_runs", a=names[1], b=names[0])
    if record is not None:
        record.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, help="directory of finished runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="keep calls and answers, one JSON document per line")
    options = parser.parse_args()
    for shown, seconds, size in asyncio.run(measure(options.runs, options.rounds, options.record)):
        print(f"{shown:<24} {seconds:8.3f} s  {size / 1000:6.1f} kB")


if __name__ == "__main__":
    main()
