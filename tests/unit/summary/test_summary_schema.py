"""The published JSON Schema describes what is written: every key, and no other."""

from __future__ import annotations

import dataclasses

import jsonschema
import pytest

from llm_perf_opt.summary import Stat, Summary
from llm_perf_opt.summary.codec import json_schema, to_plain
from tests.unit.report_summaries import full_summary


def test_the_schema_is_strict_and_documented() -> None:
    schema = json_schema(Summary)
    assert set(schema) == {"$schema", "$ref", "$defs"}
    for name, definition in schema["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert definition["required"] == list(definition["properties"]), name
        assert definition["description"], name
    jsonschema.Draft202012Validator.check_schema(schema)
    document = to_plain(full_summary())
    jsonschema.validate(document, schema)
    for spoiled in ({**document, "more": 1}, {k: v for k, v in document.items() if k != "metrics"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, schema)
    stat = {"$ref": "#/$defs/Stat"}
    assert schema["$defs"]["Timings"]["properties"]["ttft_s"]["anyOf"] == [stat, {"type": "null"}]
    assert [f.name for f in dataclasses.fields(Stat)] == schema["$defs"]["Stat"]["required"]
