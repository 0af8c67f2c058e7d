"""Common stage types: configuration, problems, results and registration.

A stage is one class, registered under the entry-point group ``llm_perf_opt.stages``; the built-in ones
register the same way. Importing a stage module must stay cheap: heavy libraries are imported in ``run``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from llm_perf_opt.core.errors import ToolError

ENTRY_POINT_GROUP = "llm_perf_opt.stages"
Severity = Literal["error", "skip", "degraded"]
Status = Literal["ok", "skipped", "failed", "degraded"]


@dataclass
class StageConfig:
    """Configuration every stage has; a stage's own dataclass derives from it."""

    enable: bool = False
    """Whether the stage runs."""

    @property
    def needs_model(self) -> bool:
        """Whether the stage uses the configured model; its adapter is then checked before any work."""
        return True


@dataclass(frozen=True, slots=True)
class Problem:
    """Something ``check`` found before any work started."""

    severity: Severity
    """``error`` stops the run (exit 2), ``skip`` leaves the stage out, ``degraded`` runs it with less."""
    message: str
    fix: str
    key: str | None = None
    """Configuration key at fault, if any."""
    of_machine: bool = False
    """Whether another machine may not have it: a job that is submitted to one is checked again there."""


@dataclass(slots=True)
class StageResult:
    """Outcome of a stage."""

    status: Status
    reason: str | None = None
    fix: str | None = None
    artifacts: list[Path] = field(default_factory=list)
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    """Command label → exit code of every process the stage started (``None``: ended by a signal or limit)."""
    inputs: dict[str, Any] | None = None
    """The samples the stage really used (``inputs.yaml``); ``None`` when it used none."""
    seconds: float | None = None
    """Filled in by the orchestrator."""
    error: str | None = None
    """Code of the expected error that ended it (``input``, ``tool``), filled in by the orchestrator."""


class RegisteredStage(Protocol):
    """What a registered class says of itself; configuration and the run directory need no more than that."""

    name: ClassVar[str]
    order: ClassVar[int]
    title: ClassVar[str]
    config_type: ClassVar[type[StageConfig]]


LOGGER = logging.getLogger("llm_perf_opt.run")
_OWN_PACKAGE = "llm_perf_opt."
_METHODS = ("check", "plan", "run", "facts", "continues")
_SLOW_S = 5.0


_UNUSABLE: dict[str, str] = {}
"""What :func:`stage_types` found last that cannot be used: name → reason."""


def entry_points(*, group: str) -> EntryPoints:
    """Return the installed entry points of a group: a hundred files, read again only when a directory of packages has changed."""
    return _entry_points(group, tuple((place, _state(place)) for place in sys.path))


@functools.lru_cache(maxsize=32)
def _entry_points(group: str, places: tuple[tuple[str, object], ...]) -> EntryPoints:
    return metadata.entry_points(group=group)


def _state(place: str) -> tuple[int, int, int] | None:
    try:
        found = Path(place).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


@functools.cache
def stage_types() -> dict[str, type[RegisteredStage]]:
    """Return every registered stage by name, in pipeline order; one of another package that cannot be used is left out."""
    _UNUSABLE.clear()
    found: dict[str, type[RegisteredStage]] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: not _is_ours(point)):
        package = point.dist.name if point.dist is not None else "an installed package"
        try:
            found[point.name] = load_stage_type(point, found)
        except PluginError as error:
            if _is_ours(point):
                raise ToolError(
                    f"the stage '{point.name}' cannot be loaded: {error}", hint="install this package again"
                ) from error
            reason = f"the stage '{point.name}' of {package} cannot be used: {error}"
            _UNUSABLE.setdefault(point.name, reason)
            LOGGER.warning("%s; it is left out (fix: update or uninstall %s)", reason, package)
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def unusable_stages() -> dict[str, str]:
    """Return the stages of other packages that cannot be used, with the reason."""
    stage_types()
    return {name: reason for name, reason in _UNUSABLE.items() if name not in stage_types()}


def load_stage_type(point: EntryPoint, known: Collection[str] = ()) -> type[RegisteredStage]:
    """Import the class of a stage and check it; :class:`PluginError` has the reason if it cannot be used."""
    return _checked_stage(load_entry_point(point), point.name, known)


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith(_OWN_PACKAGE)


def _checked_stage(kind: Any, name: str, known: Collection[str]) -> type[RegisteredStage]:
    """Return a loaded class; :class:`PluginError` names what is missing."""
    if not isinstance(kind, type):
        raise PluginError(f"it is {type(kind).__name__}, not a class")
    if name in known:
        raise PluginError("another stage has this name")
    if getattr(kind, "name", None) != name:
        raise PluginError(f"its class is named '{getattr(kind, 'name', None)}': use the same name for both")
    if not isinstance(getattr(kind, "order", None), int) or not isinstance(getattr(kind, "title", None), str):
        raise PluginError("its class has no 'order' (a whole number) or no 'title'")
    lacking = [method for method in _METHODS if not callable(getattr(kind, method, None))]
    if lacking:
        raise PluginError(f"its class has no method {', '.join(lacking)}")
    config = getattr(kind, "config_type", None)
    if not (isinstance(config, type) and issubclass(config, StageConfig)):
        raise PluginError("its config_type does not derive from StageConfig")
    if kind.__module__.startswith(_OWN_PACKAGE):
        return cast("type[RegisteredStage]", kind)
    _guarded(kind, "it cannot be instantiated")
    from omegaconf import OmegaConf  # late: reading finished runs needs no configuration

    _guarded(lambda: OmegaConf.structured(config), "its config_type is not a configuration class")
    return cast("type[RegisteredStage]", kind)


class PluginError(Exception):
    """A plug-in of another package that cannot be used; the message has the reason."""


def load_entry_point(point: EntryPoint) -> Any:
    """Import what an entry point names; every error becomes a :class:`PluginError`, and its output is discarded."""
    began = time.monotonic()
    loaded = _guarded(point.load, "it cannot be loaded")
    seconds = time.monotonic() - began
    if seconds > _SLOW_S:
        LOGGER.warning("importing the plug-in '%s' took %.0f s", point.name, seconds)
    return loaded


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """Call code of another package: it may raise anything, exit, or print without limit."""
    try:
        with contextlib.redirect_stdout(_Discarded()), contextlib.redirect_stderr(_Discarded()):
            return call()
    except SystemExit as error:
        raise PluginError(f"{what}: it ends the program (sys.exit({error.code!r:.80}))") from error
    except Exception as error:
        # The boundary to other packages: importing one may raise anything; it becomes one message, with the traceback in the log.
        LOGGER.debug("a plug-in: %s", what, exc_info=True)
        reason = " ".join(str(error).split())[:300]
        raise PluginError(f"{what}: {type(error).__name__}{f': {reason}' if reason else ''}") from error


class _Discarded(io.TextIOBase):
    """A text stream that discards everything."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)
