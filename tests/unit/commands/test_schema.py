"""The JSON Schema of the configuration accepts what the program accepts, and refuses what it refuses."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from llm_perf_opt.commands.schema import schema
from llm_perf_opt.config.compose import known_keys
from llm_perf_opt.config.keys import CONF_DIR


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    document = schema("config")
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def _keys(part: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, one in part.get("properties", {}).items():
        target = definitions[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        found |= {f"{prefix}{name}"} | _keys(target, definitions, f"{prefix}{name}.")
    return found


def test_it_has_every_key_of_the_program(validator: jsonschema.Draft202012Validator) -> None:
    document = validator.schema
    assert isinstance(document, dict)
    found = _keys(document, document["$defs"])
    assert {key for key in known_keys() if key not in found and not key.startswith("hydra")} == set()


@pytest.mark.parametrize(
    "preset",
    ["config.yaml", *(f"model/{path.name}" for path in sorted((CONF_DIR / "model").glob("*.yaml")))],
)
def test_our_own_files_fit(preset: str, validator: jsonschema.Draft202012Validator) -> None:
    document = yaml.safe_load((CONF_DIR / preset).read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": {"repeat": 3}},
        {"run": {"repeats": "three"}},
        {"model": {"dtype": "bfloat61"}},
        {"pipeline": {"nsys": {"enabled": True}}},
        {"modle": {}},
    ],
)
def test_mistakes_do_not_fit(wrong: dict[str, Any], validator: jsonschema.Draft202012Validator) -> None:
    assert list(validator.iter_errors(wrong))


def test_keys_have_their_documentation(validator: jsonschema.Draft202012Validator) -> None:
    document = validator.schema
    assert isinstance(document, dict)
    assert document["$defs"]["run"]["properties"]["repeats"]["description"]
