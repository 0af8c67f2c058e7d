"""``llm-perf-opt plugins``: every interface for plug-ins, what is installed for it, and whether it can be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points

from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.escape import visible
from llm_perf_opt.core.stage import ENTRY_POINT_GROUP, PluginError, load_stage_type
from llm_perf_opt.remedies.registry import GROUP as REMEDY_GROUP
from llm_perf_opt.remedies.registry import load_remedies
from llm_perf_opt.runs.sinks import SINK_GROUP, load_sink
from llm_perf_opt.workloads.registry import DATASET_GROUP, MODEL_GROUP, adapter_class, dataset_class

_OWN_PACKAGE = "llm-perf-opt"


@dataclass(frozen=True, slots=True)
class _Plugin:
    """One plug-in."""

    interface: str
    name: str
    value: str
    """Module and class."""
    package: str
    version: str | None
    problem: str | None
    """Why it cannot be used here; ``None``: it can."""


@dataclass(frozen=True, slots=True)
class _Interface:
    group: str
    base: str
    key: str
    """Where a configuration names one."""
    check: Callable[[EntryPoint], str | None]


def _list_plugins() -> list[_Plugin]:
    """Load every plug-in and return why those that cannot be used fail."""
    found = []
    for name, interface in _INTERFACES.items():
        for point in sorted(entry_points(group=interface.group), key=lambda point: point.name):
            package, version = (
                (point.dist.name, point.dist.version) if point.dist is not None else ("?", None)
            )
            found.append(_Plugin(name, point.name, point.value, package, version, interface.check(point)))
    built_in = load_remedies()[0]
    installed = {point.name for point in entry_points(group=REMEDY_GROUP)}
    found += [
        _Plugin(
            "remedies", one.name, f"{type(one).__module__}:{type(one).__name__}", _OWN_PACKAGE, None, None
        )
        for one in built_in
        if type(one).__module__.startswith("llm_perf_opt.") and one.name not in installed
    ]
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the plug-ins by interface."""
    parser = verb_parser("plugins", "List every interface for plug-ins and what is installed for it.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    options = parser.parse_args(arguments)
    found = _list_plugins()
    if options.json:
        interfaces = {
            name: {"group": one.group, "base": one.base, "key": one.key} for name, one in _INTERFACES.items()
        }
        print(json.dumps({"interfaces": interfaces, "plugins": [asdict(one) for one in found]}, indent=2))
        return 0
    print(_render(found))
    return 0


def _render(found: Sequence[_Plugin]) -> str:
    lines = []
    for name, interface in _INTERFACES.items():
        lines += [f"{name}: {interface.key}; class {interface.base}, entry points {interface.group}"]
        for one in (one for one in found if one.interface == name):
            origin = "" if one.package == _OWN_PACKAGE else f"  ({one.package} {one.version or ''})".rstrip()
            lines.append(f"  {one.name:<24} {'ok' if one.problem is None else 'not usable'}{origin}")
            if one.problem is not None:
                lines.append(f"      {one.problem}")
        lines.append("")
    return visible("\n".join([*lines, "How to write one: docs/extending.md"]))


def _check_stage(point: EntryPoint) -> str | None:
    try:
        load_stage_type(point)
    except PluginError as error:
        return str(error)
    return None


def _check_sink(point: EntryPoint) -> str | None:
    return _problem(lambda: load_sink(point.name).check())


def _check_model(point: EntryPoint) -> str | None:
    return _problem(lambda: adapter_class(point.name))


def _check_dataset(point: EntryPoint) -> str | None:
    return _problem(lambda: dataset_class(point.name))


def _check_remedy(point: EntryPoint) -> str | None:
    return next((one.reason for one in load_remedies()[1] if one.name == point.name), None)


def _problem(call: Callable[[], object]) -> str | None:
    try:
        answer = call()
    except LlmPerfError as error:
        return f"{error.message} (fix: {error.hint})" if error.hint else error.message
    return answer if isinstance(answer, str) else None


_INTERFACES = {
    "stages": _Interface(
        ENTRY_POINT_GROUP, "llm_perf_opt.stages.base:Stage", "pipeline.NAME.enable", _check_stage
    ),
    "models": _Interface(
        MODEL_GROUP, "llm_perf_opt.workloads.base:ModelAdapter", "model.adapter", _check_model
    ),
    "datasets": _Interface(
        DATASET_GROUP, "llm_perf_opt.workloads.base:Dataset", "dataset.adapter", _check_dataset
    ),
    "sinks": _Interface(SINK_GROUP, "llm_perf_opt.runs.sinks:Sink", "run.sinks", _check_sink),
    "remedies": _Interface(
        REMEDY_GROUP, "llm_perf_opt.remedies.base:Remedy", "improve --only NAME", _check_remedy
    ),
}
