"""What must hold after any fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults.matrix.case import Case


def problems(case: Case, folder: Path, code: int, printed: str) -> list[str]:
    """Return what is not as it must be; empty when the case holds."""
    found = []
    if code not in case.exit_codes:
        found.append(f"exit code {code}, expected {case.exit_code}: …{printed[-300:]}")
    # What a program said before it failed is quoted, with a bar before each line.
    if any(line.startswith("Traceback (most recent call last)") for line in printed.splitlines()):
        found.append("a traceback was printed")
    flat = " ".join(printed.split())
    found += [
        f"does not say '{arguments}'" for arguments in case.says if " ".join(arguments.split()) not in flat
    ]
    if code in (3, 4) and "fix:" not in printed:
        found.append("says no fix")
    run = folder / "run"
    if case.writes_nothing and run.exists() and any(path.is_file() for path in run.rglob("*")):
        found.append(f"wrote {sorted(path.name for path in run.rglob('*') if path.is_file())[:4]}")
    if case.status != "running":  # killed: nobody was there to clear up
        left = [*folder.rglob("*.partial*"), *folder.rglob("run.lock")]
        found += [f"left {path.name}" for path in left if path.is_file() and not path.is_symlink()]
    manifest = _document(run / "manifest.json")
    found += _stages(case, manifest) if case.stages else []
    found += _status(case, manifest, run) if case.status else []
    found += _strangers(manifest, run)
    if case.check is not None and not found:
        try:
            case.check(folder)
        except AssertionError as error:
            found.append(f"check: {' '.join(str(error).split())[:300] or 'does not hold'}")
    return found


def _stages(case: Case, manifest: dict[str, Any]) -> list[str]:
    found = []
    for name, status in case.stages.items():
        record = manifest.get("stages", {}).get(name, {})
        if record.get("status") != status:
            found.append(f"{name} is {record.get('status')}, expected {status}: {record.get('reason')}")
        elif status in ("failed", "skipped") and not (record.get("reason") and record.get("fix")):
            found.append(f"{name} has no reason or no fix")
    return found


def _status(case: Case, manifest: dict[str, Any], run: Path) -> list[str]:
    if not manifest:
        return ["there is no manifest"]
    found = []
    if manifest.get("status") != case.status:
        found.append(f"the manifest says {manifest.get('status')}, expected {case.status}")
    if case.status == "running":
        return found
    summary = _document(run / "summary.json")
    if summary.get("run", {}).get("status") != case.status:
        found.append(f"the summary says {summary.get('run', {}).get('status')}, expected {case.status}")
    return found + [
        f"there is no {name}" for name in ("report.html", "report.md") if not (run / name).is_file()
    ]


def _strangers(manifest: dict[str, Any], run: Path) -> list[str]:
    """Files that the summary was made from, and that the manifest does not list: somebody else's."""
    sources = _document(run / "summary.json").get("sources", {})
    if not manifest or not manifest.get("files"):
        return []
    listed = {
        *manifest["files"],
        *(name for stage in manifest["stages"].values() for name in stage["artifacts"]),
    }
    named = [name for text in sources.values() for name in text.split(", ")]
    return [f"believed {name}, which is not the run's" for name in named if name not in listed]


def _document(path: Path) -> dict[str, Any]:
    """Return a document of the run; nothing where the case is about one that cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
