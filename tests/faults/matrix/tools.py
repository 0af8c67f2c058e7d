"""Tools that are absent, not runnable, or not what they say."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_perf_opt.process.tools import find_tool
from tests.faults.matrix.case import STATIC_ONLY, Case


def _tool(tool: str, text: str | None, *, runnable: bool = True) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        path = folder / tool
        if text is not None:
            path.write_text(text)
            if runnable:
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return [
            "run", *STATIC_ONLY, f"pipeline.{tool}.enable=true", f"pipeline.{tool}.executable={path}",
            f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _cases() -> Iterator[Case]:
    for tool in ("nsys", "ncu"):
        skipped = {tool: "skipped"}
        yield Case("tool", f"{tool} absent", _tool(tool, None), 0, (tool,), skipped, slow=True)
        yield Case(
            "tool",
            f"{tool} without the run bit",
            _tool(tool, "#!/bin/sh\n", runnable=False),
            0,
            (tool,),
            skipped,
            slow=True,
        )
        yield Case(
            "tool", f"{tool} says nothing", _tool(tool, "#!/bin/sh\nexit 0\n"), 0, (tool,), skipped, slow=True
        )
        yield Case(
            "tool",
            f"{tool} is another program",
            _tool(tool, "#!/bin/sh\necho hello\n"),
            0,
            (tool,),
            skipped,
            slow=True,
        )
        yield Case(
            "tool",
            f"{tool} fails",
            _tool(tool, "#!/bin/sh\necho no >&2\nexit 7\n"),
            0,
            (tool,),
            skipped,
            slow=True,
        )
        yield Case(
            "tool", f"{tool} is no program", _tool(tool, "\x7fELFnot really"), 0, (tool,), skipped, slow=True
        )
    if find_tool("nsys") is not None:
        for what, content in {
            "garbage": b"\x00\x01" * 5000,
            "nothing": b"",
            "a page": b"<html>404</html>",
        }.items():
            yield Case(
                "tool", f"real nsys cannot export {what}", _report("run.nsys-rep", "--nsys", content), 4, ("could not export",),
                slow=True, check=_no_summary,
            )  # fmt: skip
    yield Case(
        "tool",
        "a report of ncu that is none",
        _report("run.ncu-rep", "--ncu", b"\x00" * 5000),
        3,
        ("run.ncu-rep",),
    )


def _report(name: str, option: str, content: bytes) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / name).write_bytes(content)
        return ["ingest", f"{option}={folder / name}", f"--out={folder / 'run'}"]

    return build


def _no_summary(folder: Path) -> None:
    assert not (folder / "run" / "summary.json").exists()


CASES = tuple(_cases())
