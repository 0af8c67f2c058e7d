"""Settings that are read from the files of an earlier run, search or sweep.

Such a file may come from somebody else. Settings that can execute code (remote code of a checkpoint, a class by its
dotted path, a program, environment variables, plug-ins, Hydra's own keys), or send requests and an API key to a server of
somebody else's choice, are therefore not taken over from it: the user repeats them on the command line.
:func:`executing_settings` is the one place that classifies keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.hydra_bridge.compose import RawConfig, compose_raw
from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.hydra_bridge.launch import first_choice, own_overrides
from llm_perf_opt.config.hydra_bridge.values import format_value
from llm_perf_opt.config.legacy import new_key, translate_overrides
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.secrets import MASK, mask_arguments
from llm_perf_opt.core.stage import ENTRY_POINT_GROUP, entry_points

_SECTIONS = ("run", "model", "infer", "dataset", "hardware", "pipeline", "sweep")
_OWN_PACKAGE = "llm_perf_opt."
_ADAPTER_GROUPS = {"model.adapter": "llm_perf_opt.models", "dataset.adapter": "llm_perf_opt.datasets"}
_AUTO = "auto"
_MOST_BRACKETS = 500
_EXECUTING_NAMES = frozenset(
    {
        "executable",
        "client_executable",
        "args",
        "client_args",
        "extra_args",
        "command",
        "sinks",
        "auto_map",
        "custom_pipelines",
        "_target_",
    }
)
"""Parts of keys that name a program, its options, a plug-in or code."""
_SENDING_NAMES = frozenset({"url", "metrics_urls", "step_urls", "allow_remote", "api_key_env"})
"""Parts of keys that decide which server gets requests, and which variable of the environment it gets as API key."""
_ENVIRONMENT = "env"
"""Part of keys below which variables are set: ``run.env``, ``pipeline.workload.env``, ``pipeline.serve.env``."""
_HARMLESS_VARIABLES = frozenset(
    [
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "OMP_DYNAMIC",
        "OMP_SCHEDULE",
        "KMP_BLOCKTIME",
        "KMP_AFFINITY",
        "GOMP_SPINCOUNT",
        "GOMP_CPU_AFFINITY",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MALLOC_ARENA_MAX",
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TOP_PAD_",
        "GLIBC_TUNABLES",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "TOKENIZERS_PARALLELISM",
    ]
)
"""Variables that only tune a library, as the built-in remedies set them. Any other may load code (``LD_PRELOAD``,
``PYTHONPATH``, ``OMP_TOOL_LIBRARIES``, ``CUDA_INJECTION64_PATH``)."""
_HARMLESS_HYDRA_KEYS = frozenset(
    [
        "hydra.run.dir",
        "hydra.sweep.dir",
        "hydra.sweep.subdir",
        "hydra.mode",
        "hydra.verbose",
        "hydra/launcher",
        "hydra/sweeper",
        "hydra/sweeper/sampler",
        "hydra.sweeper.max_batch_size",
        "hydra.sweeper.n_trials",
        "hydra.sweeper.n_jobs",
        "hydra.sweeper.direction",
        "hydra.sweeper.sampler.seed",
        "hydra.launcher.n_jobs",
        "hydra.launcher.timeout_min",
        "hydra.launcher.nodes",
        "hydra.launcher.gpus_per_node",
        "hydra.launcher.cpus_per_task",
        "hydra.launcher.tasks_per_node",
        "hydra.launcher.mem_gb",
        "hydra.launcher.array_parallelism",
        "hydra.launcher.partition",
    ]
)
"""Everything else below ``hydra`` (``searchpath``, ``job.env_set``, ``callbacks``, ``launcher.setup``) may bring code."""


def executing_settings(
    overrides: Sequence[str], *, config_dir: Path | None = None, config_name: str = "config"
) -> dict[str, str]:
    """Return the settings among these overrides, and in the presets they choose, that can execute code: key → value.

    Values are in Hydra's grammar, so that ``key=value`` is what a user types.
    """
    texts = translate_overrides(overrides)
    of_hydra: dict[str, str] = {}
    swept: dict[str, str] = {}
    single: dict[str, Any] = {}
    plain = True
    for text in texts:
        parsed = _parse(text)
        key, value = parsed.key_or_group, text.partition("=")[2]
        if _is_of_hydra(parsed):
            if key not in _HARMLESS_HYDRA_KEYS or parsed.package is not None:
                of_hydra[key] = value
        elif parsed.is_sweep_override():
            if any(_classified({new_key(key): each}) for each in _swept_values(parsed)):
                swept[key] = value
        else:
            single.pop(new_key(key), None)  # the last one counts; mappings are merged
            swept.pop(key, None)
            single |= _classified({new_key(key): parsed.value()})
        plain = plain and "." in key and "${" not in text and parsed.package is None
    # Hydra would already follow its own keys while it composes; without presets and references there is nothing to compose.
    if not plain and not of_hydra:
        jobs = [first_choice([text])[0] for text in own_overrides(texts)[0]]
        composed = _classified(_resolved(compose_raw(jobs, config_dir=config_dir, config_name=config_name)))
        # Of a swept key the composition holds the first value; the whole sweep is what was stored and what is repeated.
        single = {key: value for key, value in composed.items() if key not in map(new_key, swept)}
    return {**of_hydra, **swept, **{key: format_value(value) for key, value in single.items()}}


def _resolved(raw: RawConfig) -> dict[str, Any]:
    try:
        return {
            name: OmegaConf.to_container(raw[name], resolve=True, throw_on_missing=False, enum_to_str=True)
            for name in _SECTIONS
            if name in raw
        }
    except OmegaConfBaseException as error:
        raise explain(error) from error


def missing_settings(
    stored: Sequence[str],
    typed: Sequence[str],
    *,
    applied: bool = True,
    config_dir: Path | None = None,
    config_name: str = "config",
) -> list[str]:
    """Return the settings of ``stored``, as ``key=value``, that can execute code and that ``typed`` does not repeat.

    ``applied``: whether what was typed is also set after them, and so replaces them.
    """
    if not stored:
        return []
    overrides = [*stored, *typed] if applied else stored
    found = executing_settings(overrides, config_dir=config_dir, config_name=config_name)
    repeated = _typed_values(typed)
    return [f"{key}={value}" for key, value in found.items() if (key, value) not in repeated]


def refuse_executing(
    missing: Sequence[str], stored: Sequence[str], *, source: Path, command: Sequence[str]
) -> None:
    """Raise :class:`ConfigError` where settings are missing on the command line (:func:`missing_settings`).

    ``command``: the command line so far; the error shows it with the missing settings added.
    """
    if not missing:
        return
    keys = list(dict.fromkeys(item.partition("=")[0] for item in missing))
    shown = mask_arguments(missing)
    hidden = f" (put the secret in place of {MASK})" if any(MASK in item for item in shown) else ""
    code = [
        text for text in stored if text.lstrip("+").startswith(("model=", "model.path=", "model.revision="))
    ]
    of_model = (
        f" (with {' '.join(mask_arguments(code))})" if "model.trust_remote_code" in keys and code else ""
    )
    raise ConfigError(
        f"{source} contains settings that can execute code or send data elsewhere, which are not taken over from a file: "
        f"{one_line(', '.join(keys))}{one_line(of_model)}",
        hint=f"if you trust them, repeat them{hidden}: {shlex.join([*command, *shown])}",
        key=keys[0],
        path=str(source),
    )


def _typed_values(typed: Sequence[str]) -> set[tuple[str, str]]:
    """Return key and value of what a user typed, mappings leaf by leaf."""
    found: set[tuple[str, str]] = set()
    for text in translate_overrides(typed):
        parsed = _parse(text)
        found.add((parsed.key_or_group, text.partition("=")[2]))
        if not parsed.is_sweep_override() and not _is_of_hydra(parsed):
            leaves = _leaves(parsed.value(), new_key(parsed.key_or_group))
            found |= {(key, format_value(value)) for key, value in leaves}
    return found


def _classified(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a configuration that can execute code."""
    stages = _own_names(ENTRY_POINT_GROUP) | {"workload"}
    return {
        key: value
        for top, item in tree.items()
        for key, value in _leaves(item, top)
        if _executes(key, value, stages)
    }


def _executes(key: str, value: Any, stages: frozenset[str]) -> bool:
    names = key.split(".")
    if value is None or value is False or value in ([], {}, ""):
        return False
    if names[0] not in _SECTIONS:
        return False  # no setting of ours; whoever composes refuses it
    if key in _ADAPTER_GROUPS:
        return value != _AUTO and value not in _own_names(_ADAPTER_GROUPS[key])
    if _ENVIRONMENT in names and names[0] in ("run", "pipeline"):
        return not (names[-1] in _HARMLESS_VARIABLES and "/" not in str(value))
    if names[0] == "pipeline" and len(names) > 1 and names[1] not in stages:
        return True
    if names[-1].endswith("implementation"):
        return any(sign in str(value) for sign in "/:@")  # a kernel of a hub repository
    return names[-1] == "trust_remote_code" or not (_EXECUTING_NAMES | _SENDING_NAMES).isdisjoint(names)


def _own_names(group: str) -> frozenset[str]:
    """Return the entry points of a group that come with this package; none is loaded."""
    return frozenset(
        point.name for point in entry_points(group=group) if point.value.startswith(_OWN_PACKAGE)
    )


def _parse(text: str) -> Override:
    # Hydra's parser takes seconds for some thousand brackets.
    if sum(text.count(sign) for sign in "[{(") > _MOST_BRACKETS:
        raise InputError(
            f"a stored setting contains more than {_MOST_BRACKETS} brackets",
            hint="check the file it comes from",
        )
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        raise explain(error) from error
    except RecursionError as error:
        raise InputError(
            "a stored setting is nested too deeply", hint="check the file it comes from"
        ) from error


def _is_of_hydra(parsed: Override) -> bool:
    places = (parsed.key_or_group, parsed.package or "")
    return any(place.replace("/", ".").split(".")[0] == "hydra" for place in places)


def _swept_values(parsed: Override) -> list[Any]:
    """Return the values of a sweep; an interval has only numbers."""
    if not parsed.is_discrete_sweep():
        return []
    return [_parse(f"x={text}").value() for text in parsed.sweep_string_iterator()]


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}")
    else:
        yield place, value
