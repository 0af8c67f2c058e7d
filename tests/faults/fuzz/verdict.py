"""What became of an input, and whether a summary says something that cannot be. Knows nothing of our own limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.codec import to_plain

_MAY_BE_NEGATIVE = ("begin_bytes", "end_bytes", "peak_bytes", "start_ns")
"""An allocator's count on the host starts with the profile; a time stamp is a place on a clock, no quantity."""
_SHARES = ("share_ratio", "counted_ratio", "device_busy_ratio", "attributed_ratio", "classified_ratio")
_LONGEST_S = 1e10


class BadSummary(Exception):
    """A summary that was accepted and says something impossible."""


class Mismatch(Exception):
    """A damaged cache entry was believed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted``, ``refused``, ``bad summary`` or ``traceback``, and for the last two what it was."""

    kind: str
    error: BaseException | None = None


def judge(read: Callable[[], Summary | None]) -> Verdict:
    """Read an input and say what became of it."""
    try:
        summary = read()
        if summary is not None:
            check(summary)
    except LlmPerfError:
        return Verdict("refused")
    except (BadSummary, Mismatch) as error:
        return Verdict("bad summary", error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it would have reached a user
        return Verdict("traceback", error)
    return Verdict("accepted")


def check(summary: Summary) -> None:
    """Raise for a negative, a non-finite or a share above one."""
    plain = to_plain(summary)
    drawn = {
        name: plain["timeline"].get(name) for name in ("span_s", "lanes")
    }  # further keys are not ours to judge
    for path, value in _numbers({**plain, "environment": {}, "timeline": drawn}, "summary"):
        name = path.rpartition(".")[2]
        if not math.isfinite(value):
            raise BadSummary(f"{path} is {value}")
        if value < 0 and name not in _MAY_BE_NEGATIVE and not _is_free_metric(path):
            raise BadSummary(f"{path} is negative: {value}")
        if name.endswith(_SHARES) and value > 1 + 1e-6:
            raise BadSummary(f"{path} is above one: {value}")
        if name.endswith("_s") and not name.endswith("per_s") and value > _LONGEST_S:
            raise BadSummary(f"{path} is longer than anybody lives: {value}")


def _is_free_metric(path: str) -> bool:
    """A metric of a plug-in may be negative, unless its name says that it is a time, a size or a count."""
    units = ("_s", "_bytes", "_flops", "launches", "_per_token")
    return path.startswith("summary.metrics.") and not path.endswith(units)


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
