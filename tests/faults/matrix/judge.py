"""What must hold after any fault."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.matrix.case import Case


def problems(case: Case, folder: Path, code: int, printed: str) -> list[str]:
    """Return what is not as it must be; empty when the case holds."""
    found = []
    if code != case.exit_code:
        found.append(f"exit code {code}, expected {case.exit_code}")
    if "Traceback (most recent call last)" in printed:
        found.append("a traceback was printed")
    flat = " ".join(printed.split())
    found += [f"does not say '{words}'" for words in case.says if " ".join(words.split()) not in flat]
    if case.exit_code in (3, 4) and "fix:" not in printed and code == case.exit_code:
        found.append("says no fix")
    run = folder / "run"
    if case.writes_nothing and run.exists() and any(path.is_file() for path in run.rglob("*")):
        found.append(f"wrote {sorted(path.name for path in run.rglob('*') if path.is_file())[:4]}")
    found += [f"left {path.name}" for path in folder.rglob("*.partial*")]
    if case.stages:
        manifest = (
            json.loads((run / "manifest.json").read_text()) if (run / "manifest.json").is_file() else {}
        )
        for name, status in case.stages.items():
            record = manifest.get("stages", {}).get(name, {})
            if record.get("status") != status:
                found.append(f"{name} is {record.get('status')}, expected {status}")
            elif status in ("failed", "skipped") and not (record.get("reason") and record.get("fix")):
                found.append(f"{name} has no reason or no fix")
    if case.check is not None and not found:
        case.check(folder)
    return found
