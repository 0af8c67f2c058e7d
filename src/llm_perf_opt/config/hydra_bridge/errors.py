"""Say in one sentence what Hydra and OmegaConf say in several.

The patterns cover Hydra 1.3 with OmegaConf 2.3 and Hydra 1.4 with OmegaConf 2.4, the releases that ``pyproject.toml`` allows. Tests
produce each message with both, so that a changed wording is noticed.
"""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.config.keys import did_you_mean, leaf_keys
from llm_perf_opt.config.legacy import new_key
from llm_perf_opt.config.store import schema_node
from llm_perf_opt.core.errors import ConfigError, nearest_key

_WRONG_TYPE = "the value has the wrong type"
VALUE_SENTENCES = (
    (re.compile(r"Value '(.*)' of type '.*' could not be converted to (\w+)"), r"'\1' is not a valid \2"),
    (re.compile(r"Value '(.*)' is not a valid bool \(type .*\)"), r"'\1' is not a valid Boolean"),
    (re.compile(r"Invalid value '(.*)', expected one of \[(.*)\]"), r"'\1' is not one of \2"),
    (re.compile(r"Cannot convert '\w+' to string"), _WRONG_TYPE),
    (re.compile(r"Value .* \(\w+\) is not a valid input for <enum '\w+'>"), _WRONG_TYPE),
    (
        re.compile(r"Invalid value assigned: \w+ is not a ListConfig,(?: TupleConfig,)? list,? or tuple"),
        _WRONG_TYPE,
    ),
    (re.compile(r"Cannot merge (?:DictConfig with ListConfig|incompatible container types)"), _WRONG_TYPE),
    (re.compile(r"Cannot assign \w+ to [\w\[\], ]+"), _WRONG_TYPE),
    (re.compile(r"field '(.*)' is not Optional"), "null is not allowed here"),
)
"""What OmegaConf says of a value that its key cannot take, and what we say."""
_TYPE_NAMES = {"Integer": "integer", "Float": "number", "Boolean": "true/false value"}
UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")
KEY_NOT_IN_STRUCT = re.compile(r"Key '([^']+)' (?:is )?not in")
MERGED_OVERRIDE = re.compile(r"Error merging override (\S+?)=")
UNPARSED_WORD = re.compile(
    r"(?:Error parsing override '|Error when parsing index: \d+, string: )([^'=]*?)(?:'| out of \[.*\]\.)"
)
_AMBIGUOUS_VALUE = re.compile(r"Ambiguous value for argument '([^'=]+)=(.*)'\n1\. To use it as a list")
UNKNOWN_PRESET = re.compile(r"Could not find '([\w./-]+)/([^/']+)'")
PRESET_CHOICES = re.compile(r"Available options in '[^']*':\n((?:\s+\S+\n?)+)")
FILE_NOT_FOUND = "Could not find"
_MISSING_PLUGIN = re.compile(r"Could not (?:load|find) 'hydra/(launcher|sweeper)/(\w+)'")
EXTRAS = {
    "submitit_slurm": "slurm",
    "submitit_local": "slurm",
    "ray": "ray",
    "joblib": "joblib",
    "optuna": "optuna",
}
"""Choice of a launcher or sweeper → what brings its plug-in."""


def explain(error: Exception) -> ConfigError:
    """Return the error a user sees in place of one of Hydra's or OmegaConf's."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    message = str(error)
    text = _value_sentence(str(cause).splitlines()[0] if str(cause) else message)
    return (
        _ambiguous_value(message)
        or _unread_value(error)
        or _unknown_key(message, text)
        or _wrong_value(_key_of(message, cause), text)
        or _not_an_override(text)
        or _missing_plugin(message)
        or _unknown_preset(message)
        or ConfigError(_shortened(message, text))
    )


def _value_sentence(text: str) -> str:
    for pattern, sentence in VALUE_SENTENCES:
        match = pattern.search(text)
        if match:
            text = match.expand(sentence)
            break
    for name, plain in _TYPE_NAMES.items():
        text = text.replace(f"a valid {name}", f"a valid {plain}")
    return text


def _unknown_key(message: str, text: str) -> ConfigError | None:
    found = UNKNOWN_KEY.search(message) or KEY_NOT_IN_STRUCT.search(text)
    if found is None:
        return None
    key = found.group(1)
    known = leaf_keys(OmegaConf.to_container(schema_node(), resolve=False))  # type: ignore[arg-type]
    return ConfigError(f"unknown configuration key '{key}'", hint=did_you_mean(key, known), key=key)


def _key_of(message: str, cause: BaseException) -> str | None:
    override = MERGED_OVERRIDE.search(message)
    if override:
        return override.group(1).lstrip("+~")
    full_key = getattr(cause, "full_key", None)
    return str(full_key) if full_key else None


def _wrong_value(key: str | None, text: str) -> ConfigError | None:
    return ConfigError(f"{key}: {text}", hint=_current_type_hint(key), key=key) if key else None


def _current_type_hint(key: str) -> str:
    """Show the default value, which tells the type better than its name."""
    schema, (parent, _, name) = schema_node(), key.rpartition(".")
    section = OmegaConf.select(schema, parent) if parent else schema
    if isinstance(section, DictConfig) and OmegaConf.is_missing(section, name):
        return f"see what {key} is now with: llm-perf-opt run --cfg job"
    default = OmegaConf.select(schema, key, throw_on_missing=False)
    if isinstance(default, DictConfig):
        return f"set the keys inside it: {key}.KEY=VALUE"
    shown = OmegaConf.to_container(default) if OmegaConf.is_config(default) else default
    return f"the default is {key}={'null' if shown is None else shown}"


def _ambiguous_value(message: str) -> ConfigError | None:
    found = _AMBIGUOUS_VALUE.search(message)
    if found is None:
        return None
    given, value = found.group(1), found.group(2)
    key = new_key(given.lstrip("+~"))
    return ConfigError(
        f"{given}={value}: a value with commas is ambiguous",
        hint=f"a list: '{key}=[{value}]'; one text: \"{key}='{value}'\"; a run for each: --multirun {key}={value}",
        key=key,
    )


def _unread_value(error: Exception) -> ConfigError | None:
    """Hydra's grammar stumbles over ``~``, ``=``, brackets, braces and quotes in a value that is not quoted."""
    if not isinstance(error, OverrideParseException):
        return None
    given, separator, value = error.override.partition("=")
    key = given.lstrip("+~")
    if not separator:
        return None
    if value.startswith("~"):
        return ConfigError(
            f"{key}={value}: '~' is not expanded here",
            hint=f"write the path in full: {key}={_expanded(value)}",
            key=key,
        )
    shown = f"'{key}=\"{value}\"'" if "'" not in value else f"\"{key}='…'\" with \\' for each quote in it"
    return ConfigError(
        f"{key}={value} contains a character that has a meaning in Hydra's grammar",
        hint=f"quote the value, once for the shell and once for Hydra: {shown}",
        key=key,
    )


def _expanded(path: str) -> str:
    """Return a path without ``~``, also that of a user who is not here."""
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        return "/" + path.partition("/")[2]


def _not_an_override(text: str) -> ConfigError | None:
    found = UNPARSED_WORD.fullmatch(text)
    return ConfigError(f"'{found.group(1)}' is not an override", hint="give key=value") if found else None


def _missing_plugin(message: str) -> ConfigError | None:
    """A launcher or sweeper whose package is not installed, named by itself or by a preset of ours."""
    found = _MISSING_PLUGIN.search(message)
    if found is None or found.group(2) not in EXTRAS:
        return None
    kind, name = found.groups()
    extra = EXTRAS[name]
    package = "hydra-joblib-launcher" if extra == "joblib" else f"'llm-perf-opt[{extra}]'"
    return ConfigError(
        f"the {kind} '{name}' is not installed", hint=f"pip install {package}", key=f"hydra/{kind}"
    )


def _unknown_preset(message: str) -> ConfigError | None:
    """Hydra's answer to a mistyped preset lists the choices: name the nearest, and show them all."""
    found, listed = UNKNOWN_PRESET.search(message), PRESET_CHOICES.search(message)
    if found is None or listed is None:
        return None
    group, wanted = found.groups()
    choices = [line.strip() for line in listed.group(1).splitlines() if line.startswith(("\t", " "))]
    group, _, rest = group.partition("/")
    wanted = f"{rest}/{wanted}" if rest else wanted
    near = nearest_key(wanted, choices)
    guess = f"did you mean {group}={near}? " if near else _checkpoint_hint(wanted) if group == "model" else ""
    return ConfigError(
        f"{group}={wanted} is not a preset", hint=f"{guess}presets: {', '.join(choices)}", key=group
    )


def _checkpoint_hint(wanted: str) -> str:
    """Say how a checkpoint is given, which is what a name that resembles no preset probably is."""
    if Path(wanted).is_dir():
        return f"for the directory: model=./{wanted}; "
    return (
        f"for the Hugging Face Hub model: model=hf model.path={wanted}; for a local directory: model=./DIR; "
    )


def _shortened(message: str, text: str) -> str:
    """Keep all of what Hydra says of files it did not find; of the rest one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "\n  ".join(lines[:30]) if FILE_NOT_FOUND in message else text
