"""Reads ``.ncu-rep`` files through NVIDIA's own ``ncu-report`` package (the extra ``ncu``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from llm_perf_opt.captures.ncu.launches import NcuCapture, NcuLaunch, NcuRule, Quantity
from llm_perf_opt.captures.ncu.merge import complete_from_metrics
from llm_perf_opt.captures.ncu.settings import settings_of_report
from llm_perf_opt.captures.ncu.units import parse_unit
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.process.tools import has_package, import_optional

_INSTALL_HINT = (
    "pip install 'llm-perf-opt[ncu]' (NVIDIA's ncu-report package), or export a CSV: "
    "ncu --import x.ncu-rep --csv --page raw --print-units base > x.csv"
)
# Messages carry links as @section:Id:Title@ and @url:Title:https://…@.
_LINK = re.compile(r"@(?:section|url|source|sass|metric)[^:@]*:([^:@]+)(?::(https?:[^@]*))?[^@]*@")


def report_reader_available() -> bool:
    """Return whether ``.ncu-rep`` files can be read here."""
    return has_package("ncu_report")


def read_ncu_report(path: Path) -> NcuCapture:
    """Read one report; values are in base units already, and are converted to SI all the same."""
    if not path.is_file():
        raise InputError(f"{path} does not exist", hint="check the path", path=str(path))
    module = _reader(path)
    try:
        context = module.load_report(str(path))
    except (FileNotFoundError, RuntimeError, ValueError, OSError) as error:
        raise _unreadable(path, str(error)) from error
    launches = [
        _launch(module, report_range.action_by_idx(index), number, path)
        for report_range in (context.range_by_idx(index) for index in range(context.num_ranges()))
        for number, index in enumerate(range(report_range.num_actions()))
    ]
    if not launches:
        # The package returns a report without ranges for a corrupt or empty file.
        raise _unreadable(path, "no profiled kernel in it")
    settings = settings_of_report(path)
    for number, launch in enumerate(launches):
        launch.launch_id, launch.settings = str(number), settings
    return NcuCapture(launches, str(path))


def _reader(path: Path) -> Any:
    try:
        return import_optional("ncu_report")
    except ImportError as error:
        raise InputError(
            f"{path} is an Nsight Compute report, and the reader for it is not installed",
            hint=_INSTALL_HINT,
            path=str(path),
        ) from error


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} cannot be read as an Nsight Compute report ({why})",
        hint="it is empty, cut, or written by a version newer than the installed ncu-report; profile again",
        path=str(path),
    )


def _launch(module: Any, action: Any, number: int, path: Path) -> NcuLaunch:
    kernel = action.name(module.IAction.NameBase_DEMANGLED)
    if not kernel:
        # A truncated report: an action without a name.
        raise _unreadable(path, "it is cut: a kernel in it has no name")
    launch = NcuLaunch(
        kernel=kernel,
        launch_id=str(number),
        process_id="",
        grid=None,
        block=None,
        device=None,
        compute_capability=None,
        metrics={name: _quantity(action.metric_by_name(name)) for name in action.metric_names()},
        rules=[rule for entry in action.rule_results_as_dicts() if (rule := _rule(module, entry))],
        ranges=_ranges(action),
        sources=(str(path),),
    )
    for attribute, metric in (
        ("context", "launch__context_id"),
        ("stream", "launch__stream_id"),
        ("device", "launch__device_id"),
    ):
        quantity = launch.metrics.get(metric)
        if quantity is not None and quantity.value is not None:
            setattr(launch, attribute, str(int(quantity.value)))
    complete_from_metrics(launch)
    return launch


def _quantity(metric: Any) -> Quantity:
    raw_unit = metric.unit() or ""
    # A metric sampled only over time or per source line has no total: ncu prints nothing, but
    # the package returns 0.
    known = not hasattr(metric, "has_value") or metric.has_value()
    value = metric.value() if known else None
    if isinstance(value, (int, float)) and value == value and abs(value) != float("inf"):
        unit = parse_unit(raw_unit)
        return Quantity(float(value) * unit.factor, unit.symbol, repr(value), raw_unit)
    return Quantity(None, "", "n/a" if value is None else str(value), raw_unit)


def _rule(module: Any, entry: dict[str, Any]) -> NcuRule | None:
    message = entry.get("rule_message")
    if not message:
        return None
    kinds = {
        module.MsgType_NONE: "INF",
        module.MsgType_OK: "INF",
        module.MsgType_OPTIMIZATION: "OPT",
        module.MsgType_WARNING: "WRN",
        module.MsgType_ERR: "ERR",
    }
    scopes = {module.SpeedupType_GLOBAL: "global", module.SpeedupType_LOCAL: "local"}
    speedup = entry.get("speedup_estimation") or {}
    percent = speedup.get("speedup")
    return NcuRule(
        section=str(entry.get("section_identifier", "")),
        name=str(entry.get("rule_identifier", "")),
        kind=kinds.get(message.get("type"), "INF"),
        text=_plain_message(str(message.get("message", ""))),
        speedup_ratio=None if percent is None or not 0 <= float(percent) <= 100 else float(percent) / 100,
        speedup_scope=scopes.get(speedup.get("type")),
    )


def _plain_message(text: str) -> str:
    """Return a rule's message without link mark-up, as the CSV page prints it."""

    def plain(match: re.Match[str]) -> str:
        parts = match.group(0).strip("@").split(":", 2)
        if parts[0] == "url":
            return f"{parts[1]} ({parts[2]})" if len(parts) == 3 else parts[-1]
        return parts[-1]

    return " ".join(_LINK.sub(plain, text).split())


def _ranges(action: Any) -> tuple[str, ...]:
    state = action.nvtx_state()
    if state is None:
        return ()
    found: list[str] = []
    for domain_id in state.domains():
        domain = state.domain_by_id(domain_id)
        found.extend(str(name) for name in domain.push_pop_ranges())
    return tuple(found)
