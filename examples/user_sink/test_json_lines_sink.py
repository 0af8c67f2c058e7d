"""The suite every sink must pass; run with the package installed: ``pytest test_json_lines_sink.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.testing.sinks import SinkConformance


class TestJsonLines(SinkConformance):
    """The suite, for this sink."""

    sink = "json_lines"

    def stored(self, folder: Path) -> Sequence[str]:
        """Return the ids in the file."""
        return [
            json.loads(line)["id"]
            for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
        ]
