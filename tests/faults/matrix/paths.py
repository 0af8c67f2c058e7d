"""Names that programs trip over: the run directory, its parents, its length, its letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.matrix.case import STATIC_ONLY, Case


def _into(name: str, before: Callable[[Path], None] | None = None) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        if before is not None:
            before(folder)
        return ["run", *STATIC_ONLY, f"artifacts.runs_dir='{folder / name}'"]

    return build


def _has_report(name: str) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        assert (folder / name / "report.html").is_file()

    return check


def _cases() -> Iterator[Case]:
    for name in (
        "with space",
        "ünïcødé",
        "comma,name",
        "per%cent",
        "am&persand",
        "[brackets]",
        "semi;colon",
        "-dash",
        "dot.",
    ):
        yield Case("path", name, _into(name), 0, slow=True, check=_has_report(name))
    deep = "/".join(["deeper"] * 20)
    yield Case("path", "twenty folders deep", _into(deep), 0, slow=True, check=_has_report(deep))
    yield Case("path", "300 letters", _into("x" * 300), 4, ("fix:",), slow=True)
    yield Case(
        "path",
        "below a file",
        _into("file/run", lambda folder: (folder / "file").write_text("x") and None),
        4,
        ("a file is where",),
    )


CASES = tuple(_cases())
