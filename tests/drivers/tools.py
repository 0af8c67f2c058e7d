"""Put a program on PATH that answers as a vendor tool did: arguments → transcript."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support import python_program, write_program

TRANSCRIPTS = Path(__file__).with_name("transcripts")

_PROGRAM = """import json, sys
answers = json.loads({table!r})
given = " ".join(sys.argv[1:])
with open({log!r}, "a") as log:
    print(given, file=log)
for prefix, (code, text) in answers.items():
    if given.startswith(prefix):
        sys.stdout.write(text)
        sys.exit(code)
sys.exit("not in the transcript: " + given)
"""


def transcript(name: str) -> str:
    """Return what a tool printed."""
    return (TRANSCRIPTS / (name if name.endswith(".json") else f"{name}.txt")).read_text(encoding="utf-8")


def play(folder: Path, tool: str, answers: Mapping[str, tuple[int, str]]) -> Path:
    """Write a program ``tool`` that answers arguments beginning with a key; its arguments are logged to ``<tool>.queries``."""
    folder.mkdir(parents=True, exist_ok=True)
    program = _PROGRAM.format(table=json.dumps(dict(answers)), log=str(folder / f"{tool}.queries"))
    return write_program(folder / tool, python_program(program, "-S"))


def queries(folder: Path, tool: str) -> list[str]:
    """Return the arguments a tool was called with, in order."""
    log = folder / f"{tool}.queries"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
