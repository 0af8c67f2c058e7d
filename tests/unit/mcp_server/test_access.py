"""Paths outside of the roots are refused before they are looked at; output is only new and only below its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.mcp_server.access import Access
from tests.unit.history.runs_made import make_run


@pytest.fixture
def access(tmp_path: Path) -> Access:
    (tmp_path / "runs").mkdir()
    (tmp_path / "out").mkdir()
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path, "secret")
    return Access.of([tmp_path / "runs"], tmp_path / "out")


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../secret", "/", "a\0b", "..", "~/x/../../../etc"]
)
def test_what_is_outside_is_refused_whether_or_not_it_exists(access: Access, path: str) -> None:
    with pytest.raises((ConfigError, InputError)) as caught:
        access.run(path)
    assert "secret" not in (caught.value.hint or "")


def test_a_link_does_not_lead_outside(access: Access, tmp_path: Path) -> None:
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "summary.json").symlink_to(tmp_path / "secret" / "summary.json")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs" / "loop")
    for name in ("link", "b", "loop"):
        with pytest.raises((ConfigError, InputError)):
            access.run(name)
    assert [path.parent.name for path in access.summaries()] == ["a"]


def test_a_run_is_named_absolutely_or_below_a_root(access: Access, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "a" / "summary.json"
    assert access.run("a") == access.run(str(tmp_path / "runs" / "a")) == access.run(str(file)) == file
    with pytest.raises(InputError) as caught:
        access.run("aa")
    assert caught.value.hint == "did you mean a?"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "x" * 200, "-o", "a\nb"])
def test_output_has_a_plain_name(access: Access, name: str) -> None:
    with pytest.raises(ConfigError):
        access.new_output(name)


def test_output_is_never_overwritten(access: Access, tmp_path: Path) -> None:
    assert access.new_output("new") == tmp_path / "out" / "new"
    (tmp_path / "out" / "new").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError):
        access.new_output("new")


def test_options_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Access.of([tmp_path], allow_run=True)
    with pytest.raises(ConfigError):
        Access.of([tmp_path / "missing"])
    with pytest.raises(ConfigError):
        Access.of([tmp_path]).new_output("x")
