"""A tree of runs in which single files are bombs, damaged or foreign: the others are indexed, and each bad one is noted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.files import parse_yaml
from tests.support import cli
from tests.unit.history.runs_made import make_run, read_runs


def laughs(merge: bool = False) -> str:
    first = "a: &a {x0: 1, x1: 1}" if merge else "a: &a [x, x, x, x, x, x, x, x, x, x]"
    lines = [first]
    for number in range(25):
        before, name = ("a" if number == 0 else f"a{number - 1}"), f"a{number}"
        items = ", ".join([f"*{before}"] * 10)
        lines.append(f"{name}: &{name} {{<<: [{items}]}}" if merge else f"{name}: &{name} [{items}]")
    return "\n".join(lines) + "\n"


YAML_BOMBS: dict[str, bytes] = {
    "200,000 brackets": b"[" * 200_000,
    "200,000 closed brackets": b"[" * 200_000 + b"]" * 200_000,
    "200,000 braces": b"{a: " * 200_000,
    "200,000 dashes": b"- " * 200_000 + b"x",
    "200,000 question marks": b"? " * 200_000,
    "deep below a key": b"model:\n  arch: " + b"[" * 150_000 + b"\n",
    "aliases": laughs().encode(),
    "merge keys": laughs(merge=True).encode(),
    "an alias of itself": b"a: &a [*a]\n",
    "a merge of itself": b"a: &a\n  <<: *a\n",
    "a number of a million digits": b"model: {seed: " + b"9" * 1_000_000 + b"}\n",
    "a number in base sixty": b"model: {seed: 1" + b":1" * 300_000 + b"}\n",
    "a lone surrogate": b'model:\n  name: "\\uD800"\n',
    "a lone surrogate as a key": b'model:\n  "\\uDFFF": 1\n',
    "a Python object": b"!!python/object/apply:os.system ['true']\n",
    "bytes that are no text": b"\xfd\xfc" * 100,
    "a date that is none": b"model: {name: 2020-13-99}\n",
    "an unhashable key": b"? [a]\n: 1\n",
    "a list": b"- a\n",
    "an invalid integer": b"model: {seed: !!int x}\n",
    "a tab": b"model:\n\tname: x\n",
    "an unknown alias": b"model: *nothing\n",
    "null bytes": b"\0" * 1000,
}


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_a_document_is_read_or_refused_at_once(name: str) -> None:
    began = time.process_time()
    if name == "a list":
        assert parse_yaml(YAML_BOMBS[name]) == ["a"]
    else:
        with pytest.raises(ValueError):
            parse_yaml(YAML_BOMBS[name])
    assert time.process_time() - began < 5


def test_ordinary_documents_are_read_as_before() -> None:
    text = "a: &a {x: 1, y: [2, 3]}\nb: {<<: *a, z: 0x10}\nc: *a\nd: 2020-01-02\ne: ä\n"
    import yaml

    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("") is None
    assert parse_yaml("[" * 100 + "]" * 100) is not None


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_one_bad_configuration_is_one_note(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        make_run(tmp_path, f"run{number}", day=number + 1)
    (tmp_path / "run1" / "config.yaml").write_bytes(YAML_BOMBS[name])
    began = time.process_time()
    assert main(["index", str(tmp_path)]) == 0
    assert time.process_time() - began < 20
    assert [row.run for row in read_runs(tmp_path)] == ["run0", "run1", "run2"]
    output = capsys.readouterr().err
    assert output.count("config.yaml") == 1 and "run1" in output, output


def _config(content: bytes) -> Callable[[Path], None]:
    return lambda run: (run / "config.yaml").write_bytes(content) and None


def _summary(content: bytes) -> Callable[[Path], None]:
    return lambda run: (run / "summary.json").write_bytes(content) and None


def _text(key: str, value: object) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        document = json.loads((run / "summary.json").read_text())
        node = document
        *parts, last = key.split(".")
        for part in parts:
            node = node[part]
        node[last] = value
        (run / "summary.json").write_text(json.dumps(document))

    return change


def _fifo(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return change


def _link(name: str, target: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to(target)

    return change


TREE_FAULTS: dict[str, Callable[[Path], None]] = {
    "summary: 200,000 brackets": _summary(b"[" * 200_000),
    "summary: 200,000 objects": _summary(b'{"run":' * 200_000),
    "summary: empty": _summary(b""),
    "summary: null": _summary(b"null"),
    "summary: not UTF-8": _summary(b'{"run": "\xff"}'),
    "summary: a number without end": _summary(b'{"run": ' + b"9" * 1_000_000 + b"}"),
    "summary: many keys": _summary(b"{" + b",".join(b'"k%d": 1' % n for n in range(200_000)) + b"}"),
    "summary: a pipe": _fifo("summary.json"),
    "summary: an endless device": _link("summary.json", "/dev/zero"),
    "summary: a link to itself": _link("summary.json", "summary.json"),
    "summary: a lone surrogate in the model": _text("workload.model", "\ud800"),
    "summary: a lone surrogate in the command": _text(
        "run.command", ["llm-perf-opt", "run", "model.name=\udfff"]
    ),
    "summary: a lone surrogate in the environment": _text("environment.llm_perf_opt", "\ud800"),
    "summary: a lone surrogate as a package": _text("environment.packages", {"\ud800": "1"}),
    "summary: a lone surrogate in the device": _text("hardware.name", "\udc00x"),
    "summary: a lone surrogate in the time": _text("run.started", "\udc00"),
    "summary: a time beyond the calendar": _text("run.started", "99999-01-01T00:00:00"),
    "summary: a packages list": _text("environment.packages", [1, 2]),
    "summary: deep environment": _text("environment.x", json.loads("[" * 500 + "]" * 500)),
    "summary: huge batch": _text("workload.batch_size", 10**30),
    "summary: a line break in the model": _text("workload.model", "a\nb\x00c"),
    "configuration: a pipe": _fifo("config.yaml"),
    "configuration: an endless device": _link("config.yaml", "/dev/zero"),
    "configuration: a directory": lambda run: ((run / "config.yaml").unlink(), (run / "config.yaml").mkdir())[
        1
    ],
    "configuration: large": _config(b"#" * (9 << 20)),
    "configuration: strange types": _config(
        b"model: {name: .nan, seed: .inf, arch: {1: 2, null: 3, 2020-01-01: !!set {a}}}\n"
    ),
}


@pytest.mark.parametrize("name", TREE_FAULTS)
@pytest.mark.parametrize("verb", ["index", "history", "compare"])
def test_one_bad_file_costs_no_other_run(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        make_run(tmp_path, f"run{number}", day=number + 1)
    if verb == "compare":  # which renews an index, and makes none
        assert main(["index", str(tmp_path)]) == 0
    TREE_FAULTS[name](tmp_path / "run1")
    expected = {
        "index": ["index", str(tmp_path)],
        "history": ["history", str(tmp_path), "--html"],
        "compare": ["compare", str(tmp_path / "run2"), "--baseline", "latest"],
    }[verb]
    assert main(expected) in (0, 3), capsys.readouterr().err
    output = capsys.readouterr()
    assert "defect" not in output.err
    names = {row.run for row in read_runs(tmp_path)}
    assert {"run0", "run2"} <= names <= {"run0", "run1", "run2"}


@pytest.mark.parametrize("name", ["200,000 brackets", "merge keys", "a lone surrogate"])
def test_an_index_in_a_process_of_its_own_survives(name: str, tmp_path: Path) -> None:
    """The attacks as they were reported: SIGSEGV, more than 40 seconds, exit code 70."""
    make_run(tmp_path, "good")
    bad = make_run(tmp_path, "bad", day=2)
    (bad / "config.yaml").write_bytes(YAML_BOMBS[name])
    done = cli("index", str(tmp_path), cwd=tmp_path, timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert "bad/config.yaml" in done.stderr
