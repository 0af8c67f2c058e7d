"""A sink that appends one line per run to ``runs.jsonl`` beside the run directories."""

from __future__ import annotations

import json
import os
from pathlib import Path

from llm_perf_opt.runs.sinks import Sink
from llm_perf_opt.summary import Summary

VARIABLE = "JSON_LINES_FILE"


class JsonLinesSink(Sink):
    """The headline numbers of every run, one line each."""

    name = "json_lines"

    def write(self, summary: Summary, run_dir: Path) -> None:
        """Append one line; a single write, so that lines of jobs that end together do not mix."""
        timings = summary.timings
        line = {
            "id": summary.run.id,
            "started": summary.run.started,
            "status": summary.run.status,
            "model": summary.workload.model,
            "tpot_s": timings.tpot_s.median if timings.tpot_s else None,
            "ttft_s": timings.ttft_s.median if timings.ttft_s else None,
        }
        path = Path(os.environ.get(VARIABLE) or run_dir.absolute().parent / "runs.jsonl")
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
