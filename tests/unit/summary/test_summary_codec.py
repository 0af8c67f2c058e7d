"""JSON in and out of dataclasses: nothing is lost, nothing unfit gets through, and the place of a mistake is named."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tempfile
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.captures.documents import TorchProfile
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.hardware.probe import ProbeResult
from llm_perf_opt.runs.manifest import Manifest
from llm_perf_opt.summary import Hardware, LedgerRow, Operator, Summary, Timings
from llm_perf_opt.summary.codec import decode_file, from_plain, read_json, save_json, to_plain
from llm_perf_opt.summary.static import StaticDocument
from tests.unit.report_summaries import full_summary

DOCUMENTS = [Summary, StaticDocument, Manifest, ProbeResult, TorchProfile]
NAN, INF = math.nan, math.inf


@dataclass(slots=True)
class Inner:
    """An inner part."""

    number: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, slots=True)
class Outer:
    """A whole."""

    count: int
    text: str = ""
    flag: bool = False
    maybe: float | None = None
    parts: list[Inner] = field(default_factory=list)
    by_name: dict[str, Inner | None] = field(default_factory=dict)
    anything: Any = None


TEXT = st.text(max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
UNFIT = st.sampled_from([NAN, INF, -INF, 10**400, -(10**400), "1", True, None, [], {}, "\udcff"])
GARBAGE = st.recursive(
    SCALARS | UNFIT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return JSON
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(a) for a in arguments])
    if origin is typing.Annotated:
        limits = arguments[1]
        kind = st.integers if arguments[0] is int else st.floats
        return kind(limits.ge, limits.le) if limits.ge is not None else st.floats(1e-300, limits.le)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return st.builds(
            annotation, **{f.name: values_of(hints[f.name]) for f in dataclasses.fields(annotation)}
        )
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    return {int: st.integers(), str: TEXT, bool: st.booleans(), type(None): st.none()}[annotation]


@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from([Outer, Hardware, Timings, LedgerRow, Operator, Manifest, ProbeResult]))
    value = data.draw(values_of(cls))
    assert from_plain(cls, to_plain(value)) == value
    with tempfile.TemporaryDirectory() as folder:
        path = save_json(Path(folder) / "a.json", value)
        assert decode_file(path, cls) == value
        assert json.loads(path.read_text(encoding="utf-8")) == to_plain(value)


@given(st.sampled_from([Outer, *DOCUMENTS]), GARBAGE)
def test_garbage_is_read_or_an_input_error(cls: type, data: Any) -> None:
    try:
        value = from_plain(cls, data)
    except InputError as error:
        assert error.message.startswith(cls.__name__)
    else:
        to_plain(value)


@given(st.sampled_from([Outer, *DOCUMENTS, dict[str, Any]]), st.binary(max_size=60) | GARBAGE.map(repr))
def test_a_file_of_garbage_is_read_or_an_input_error(cls: type, content: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        raw = (
            content.replace("'", '"').encode("utf-8", errors="replace")
            if isinstance(content, str)
            else content
        )
        path.write_bytes(raw)
        try:
            to_plain(decode_file(path, cls))
        except InputError as error:
            assert str(path) in error.message


@given(st.data())
def test_one_spoiled_value_is_read_or_named(data: st.DataObject) -> None:
    """Wherever a summary is damaged, the message leads to the place or above it."""
    document = to_plain(full_summary())
    place, names = document, ["Summary"]
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        names.append(f"[{key}]" if isinstance(place, list) else f".{key}")
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(GARBAGE)
    try:
        to_plain(from_plain(Summary, document))
    except InputError as error:
        assert error.message.startswith("".join(names))


def outer(**changes: Any) -> dict[str, Any]:
    return {"count": 1, **changes}


Facts = tuple[str, ...]
WRONG: list[tuple[Any, str, Facts]] = [
    ([], "Outer", ("object", "list")),
    ({"text": "x"}, "Outer", ("'count'",)),
    (outer(count=True), "Outer.count", ("int", "bool")),
    (outer(count="1"), "Outer.count", ("int", "str")),
    (outer(count=1.0), "Outer.count", ("int", "float")),
    (outer(text=1), "Outer.text", ("str", "int")),
    (outer(flag=1), "Outer.flag", ("bool", "int")),
    (outer(maybe="x"), "Outer.maybe", ("number", "str")),
    (outer(maybe=True), "Outer.maybe", ("number", "bool")),
    (outer(parts={}), "Outer.parts", ("list", "dict")),
    (outer(parts=[{"number": 1}, {}]), "Outer.parts[1]", ("'number'",)),
    (outer(parts=[{"number": 1, "kind": "c"}]), "Outer.parts[0].kind", ("'c'", "'a', 'b'")),
    (outer(parts=[{"number": 1, "kind": 3}]), "Outer.parts[0].kind", ("'a', 'b'", "int")),
    (outer(by_name=[]), "Outer.by_name", ("object", "list")),
    (outer(by_name={"x": None, "y": {"number": None}}), "Outer.by_name.y.number", ("number", "NoneType")),
    (outer(maybe=10**400), "Outer.maybe", ("finite", "large")),
]
"""Data, where it is wrong, and in this order what should be there and what is."""
TOO_LONG: list[tuple[Any, str, Facts]] = [
    (outer(count=10**5000), "Outer.count", ("finite", "large")),
    (outer(anything=[10**5000]), "Outer.anything[0]", ("finite", "large")),
]
NOT_FINITE: list[tuple[Any, str, Facts]] = [
    (outer(maybe=NAN), "Outer.maybe", ("finite", "nan")),
    (outer(by_name={"x": {"number": -INF}}), "Outer.by_name.x.number", ("finite", "-inf")),
    (outer(anything=[{"a": [0.5, INF]}]), "Outer.anything[0].a[1]", ("finite", " inf")),
]


def assert_message(message: str, place: str, facts: Facts) -> None:
    """The message names the place, and the facts in their order; the words between them are free."""
    where, _, what = message.partition(": ")
    assert where == place
    assert re.search(".*".join(map(re.escape, facts)), what), what


@pytest.mark.parametrize(("data", "place", "facts"), [*WRONG, *TOO_LONG, *NOT_FINITE])
def test_the_place_of_a_mistake_is_named(data: Any, place: str, facts: Facts) -> None:
    with pytest.raises(InputError) as caught:
        from_plain(Outer, data)
    assert_message(caught.value.message, place, facts)


@pytest.mark.parametrize(("data", "place", "facts"), WRONG)
def test_a_file_names_itself_and_the_place(data: Any, place: str, facts: Facts, tmp_path: Path) -> None:
    path = atomic_write_json(tmp_path / "a.json", data)
    with pytest.raises(InputError) as caught:
        decode_file(path, Outer, hint="try another")
    assert_message(caught.value.message, place.replace("Outer", str(path), 1), facts)
    assert caught.value.hint == "try another"
    assert caught.value.data == {"path": str(path)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # What follows the name of the format are Python's own words.
        ("", "JSON: Expecting value: line 1 column 1"),
        ('{"count": 1', "JSON: Expecting ',' delimiter: line 1 column 12"),
        ('{"count": 1} 2', "JSON: Extra data"),
        ('{"count": 1, "maybe": NaN}', "JSON: NaN"),
        ('{"count": 1, "anything": [-Infinity]}', "JSON: -Infinity"),
        ('{"count": 1, "maybe": 1e999}', ".maybe: "),
        ('{"count": 1, "anything": {"x": -1e999}}', ".anything.x: "),
        ('{"count": 1, "anything": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
        ('{"count": 1, "unknown": ' + "[" * 100_000, "nested"),
        ('{"count": 1, "anything": ' + "9" * 5000 + "}", "JSON: Exceeds the limit"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        decode_file(path, Outer)
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"count": "\xff"}')
    with pytest.raises(InputError, match="not valid JSON: 'utf-8' codec"):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"absent\.json.*No such file") as caught:
        read_json(tmp_path / "absent.json", hint="look elsewhere")
    assert caught.value.hint == "look elsewhere"
    with pytest.raises(InputError, match="cannot read"):
        read_json(tmp_path)


def test_data_in_memory_may_be_nested_too_deeply() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match=r"Outer.*nested"):
        from_plain(Outer, outer(anything=deep))


def test_unknown_keys_are_kept_out_and_missing_ones_get_defaults() -> None:
    value = from_plain(Outer, {"count": 3, "unknown": {"x": [1]}, "parts": [{"number": 2, "more": 1}]})
    assert value == Outer(3, parts=[Inner(2.0)])
    assert type(value.parts[0].number) is float


@pytest.mark.parametrize(("data", "place", "facts"), NOT_FINITE)
def test_what_is_not_finite_is_never_written(
    data: dict[str, Any], place: str, facts: Facts, tmp_path: Path
) -> None:
    value = Outer(**{**data, "by_name": {k: Inner(**v) for k, v in data.get("by_name", {}).items()}})
    with pytest.raises(ValueError, match="finite") as caught:
        to_plain(value)
    assert_message(str(caught.value), place, facts)
    with pytest.raises(ValueError, match="finite"):
        save_json(tmp_path / "a.json", value)
    assert not list(tmp_path.iterdir())


def test_numpy_numbers_and_other_subclasses_are_written_as_what_they_are() -> None:
    class Word(str):
        __slots__ = ()

    plain = to_plain(Outer(1, text=Word("x"), maybe=numpy.float64(0.5), anything={2: (1, 2)}))
    assert json.loads(json.dumps(plain)) == {
        **to_plain(Outer(1, text="x", maybe=0.5)),
        "anything": {"2": [1, 2]},
    }
    assert type(plain["text"]) is str
    assert type(plain["maybe"]) is float


def test_undecodable_file_names_survive_a_file(tmp_path: Path) -> None:
    value = Outer(1, text="page-\udcff.png", by_name={"\udcfe": Inner(0.5)}, anything=["é", "\udcff"])
    path = save_json(tmp_path / "a.json", value)
    assert path.read_bytes().isascii() is False
    assert decode_file(path, Outer) == value


def test_files_are_indented_as_python_would(tmp_path: Path) -> None:
    plain = {"a": [], "b": {}, "c": [1, {"d": "é\n"}], "e": [1e300, 1.5e-7, -0.0, None, True]}
    written = atomic_write_json(tmp_path / "a.json", plain).read_text(encoding="utf-8")
    assert written == json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
