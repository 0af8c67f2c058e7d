"""Wall-clock documents: measurements of our engine, or a few numbers of an external run.

The short form is ``{"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074}``, any subset,
times per sample. There ``decode_s`` covers all ``new_tokens`` unless ``decode_steps`` is given, and
``prefill_s`` holds the vision tower too unless ``vision_s`` is given next to it (most runners nest it).

For a user's own program only its runs are known:
``{"program": {"name": "bench.py", "argv": […]}, "runs": [{"wall_s": 1.93, "ok": true}, …]}``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from msgspec import Meta

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import InputError, nearest_key
from llm_perf_opt.core.limits import (
    LEAST_SECONDS,
    MOST_COUNT,
    MOST_SECONDS,
    Amount,
    Count,
    Seconds,
    Share,
    is_count,
    is_duration,
)
from llm_perf_opt.core.phases import BEFORE_PREFILL, REQUEST_PHASES
from llm_perf_opt.summary import SampleTimes, Stat, Stopped, Timings, Workload
from llm_perf_opt.summary.codec import from_plain, read_json
from llm_perf_opt.summary.statistics import describe, interval_ratio, mean_of, percentile

# Times measured without a tool, with the amount of work.


@dataclass(frozen=True, slots=True)
class SampleTotal:
    """Time of one sample without a profiler."""

    new_tokens: int
    seconds: float


@dataclass(slots=True)
class WallClock:
    """Timings with the amount of work."""

    timings: Timings
    workload: Workload
    decode_steps: float | None
    """Model steps inside ``timings.decode_s``."""
    prefill_includes_vision: bool
    """Whether the measured prefill ran the vision tower."""
    device_name: str | None = None
    """Device, when the file names one."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Scalars about the measurement itself (padding, growth over tokens, first repeat)."""
    repeat_spread: dict[str, Stat] = field(default_factory=dict)
    """Phase → time of each repeat ÷ median of its sample."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report must know about the measurement."""
    sample_totals: dict[str, SampleTotal] = field(default_factory=dict)
    """Sample → what it took, to tell how much a profiler slows the same work down."""
    samples: list[SampleTimes] = field(default_factory=list)
    """Every sample by itself; empty where the file has totals only."""


# Measurement quality from repeated timings: noise, warm-up, drift, growth, padding.


_QUARTERS = 4
_FEWEST_TOKENS = 16
"""Fewer tokens than this say nothing about growth."""
_SampleEntry = Mapping[str, Any]
"""One entry of ``samples`` in a timings document."""


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def repeat_spread(samples: Sequence[_SampleEntry]) -> dict[str, Stat]:
    """Return, per phase, every repeat's time divided by the median of the same sample's repeats."""
    spreads: dict[str, Stat] = {}
    for phase in REQUEST_PHASES:
        ratios: list[float] = []
        for sample in samples:
            values = [r[f"{phase}_s"] for r in sample["repeats"] if r.get(f"{phase}_s")]
            if len(values) > 1:
                middle = _median(values)
                ratios.extend(value / middle for value in values)
        stat = describe(ratios)
        if stat is not None:
            spreads[phase] = stat
    return spreads


def repeat_interval_ratio(samples: Sequence[_SampleEntry]) -> float | None:
    """Return how wide the 95 % interval of a pass over all samples is, as a share of its time."""
    totals = [values for sample in samples if (values := _totals(sample))]
    repeats = min((len(values) for values in totals), default=0)
    levels = [[math.log(values[k]) for values in totals if values[k] > 0] for k in range(repeats)]
    return interval_ratio([math.fsum(level) / len(level) for level in levels if level])


def measurement_metrics(samples: Sequence[_SampleEntry]) -> dict[str, float | None]:
    """Return scalars that findings use; ``None`` if a metric cannot be computed."""
    return {
        "first_repeat_ratio": _first_over_rest(samples),
        "last_over_first_repeat_ratio": _last_over_first(samples),
        "tpot_growth_ratio": _token_growth(samples),
        "padding_ratio": _padding(samples),
    }


def _totals(sample: _SampleEntry) -> list[float]:
    return [sum(repeat.get(f"{phase}_s") or 0.0 for phase in REQUEST_PHASES) for repeat in sample["repeats"]]


def _first_over_rest(samples: Sequence[_SampleEntry]) -> float | None:
    """Return the first measured pass, which may be cold, relative to later repeats of the same sample."""
    totals = _totals(samples[0]) if samples else []
    return totals[0] / _median(totals[1:]) if len(totals) > 2 and _median(totals[1:]) > 0 else None


def _last_over_first(samples: Sequence[_SampleEntry]) -> float | None:
    ratios = [
        totals[-1] / totals[0] for sample in samples if len(totals := _totals(sample)) > 2 and totals[0] > 0
    ]
    return _median(ratios) if ratios else None


def _token_growth(samples: Sequence[_SampleEntry]) -> float | None:
    """Median token time of the last quarter over that of the first quarter."""
    ratios = []
    for sample in samples:
        for repeat in sample["repeats"]:
            tokens = repeat.get("token_s") or []
            quarter = len(tokens) // _QUARTERS
            if len(tokens) >= _FEWEST_TOKENS and (first := _median(tokens[:quarter])) > 0:
                ratios.append(_median(tokens[-quarter:]) / first)
    return _median(ratios) if ratios else None


def _padding(samples: Sequence[_SampleEntry]) -> float | None:
    """Share of prompt positions that are padding, over all batches whose sequence lengths are known."""
    reported = mean_of([(sample.get("facts") or {}).get("padding_ratio") for sample in samples])
    if reported is not None:
        return reported
    computed = used = 0
    for sample in samples:
        lengths: Any = (sample.get("facts") or {}).get("prompt_tokens")
        if _are_counts(lengths) and sample.get("prompt_tokens"):
            computed += sample["prompt_tokens"] * len(lengths)
            used += sum(lengths)
    return min(max(0.0, 1 - used / computed), 1.0) if computed else None


def _are_counts(lengths: Any) -> bool:
    return isinstance(lengths, list) and bool(lengths) and all(map(is_count, lengths))


def sample_totals(samples: Sequence[_SampleEntry]) -> dict[str, SampleTotal]:
    """Return, per sample, its tokens and the median of its repeats, preprocessing left out."""
    totals = {}
    for sample in samples:
        seconds = [value for value in _totals(sample) if value > 0]
        if seconds:
            totals[str(sample["id"])] = SampleTotal(int(sample["new_tokens"]), _median(seconds))
    return totals


def sample_rows(samples: Sequence[_SampleEntry]) -> list[SampleTimes]:
    """Return one row per sample: its size and the medians of its repeats."""
    return [_sample_row(sample) for sample in samples]


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _median(known) if known else None


def _sample_row(sample: _SampleEntry) -> SampleTimes:
    repeats = sample["repeats"]
    medians = {
        f"{phase}_s": _middle([repeat.get(f"{phase}_s") for repeat in repeats]) for phase in REQUEST_PHASES
    }
    steps = sample["new_tokens"] - 1
    decode = [repeat.get("decode_s") for repeat in repeats]
    return SampleTimes(
        id=str(sample["id"]),
        n=len(repeats),
        prompt_tokens=sample.get("prompt_tokens"),
        image_tokens=sample.get("image_tokens"),
        new_tokens=sample["new_tokens"],
        preprocess_s=_middle([repeat.get("preprocess_s") for repeat in repeats]),
        vision_s=medians.get("vision_s"),
        encode_s=medians.get("encode_s"),
        prefill_s=medians.get("prefill_s"),
        decode_s=medians.get("decode_s"),
        ttft_s=_middle(
            [
                sum(repeat.get(f"{phase}_s") or 0.0 for phase in BEFORE_PREFILL) + repeat["prefill_s"]
                for repeat in repeats
                if repeat.get("prefill_s") is not None
            ]
        ),
        tpot_s=_middle([None if value is None else value / steps for value in decode]) if steps > 0 else None,
    )


_Positive = Annotated[float, Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]
"""A time that was measured: a clock that did not move measured nothing."""


@dataclass(slots=True)
class _Repeat:
    """One pass as written by the engine; ``None``: the phase did not run."""

    preprocess_s: Seconds | None = None
    vision_s: _Positive | None = None
    encode_s: _Positive | None = None
    prefill_s: _Positive | None = None
    decode_s: _Positive | None = None
    token_s: list[Seconds] | None = None
    components: dict[str, Seconds] | None = None


@dataclass(slots=True)
class _Padding:
    """Padding facts of a batch."""

    padding_ratio: Share | None = None
    prompt_tokens: Any = None


@dataclass(slots=True)
class _Batch:
    """One measured batch."""

    id: str
    new_tokens: Count
    repeats: list[_Repeat]
    batch_size: Count | None = None
    prompt_tokens: Amount | None = None
    facts: _Padding | None = None


@dataclass(slots=True)
class _EngineDocument:
    """The fields read from ``timings.json``."""

    workload: Workload
    samples: list[_Batch]


_SHORT_TIMES = ("preprocess_s", "vision_s", "encode_s", "prefill_s", "ttft_s", "decode_s", "tpot_s")
_SHORT_COUNTS = ("samples", "new_tokens", "prompt_tokens", "image_tokens", "batch_size", "decode_steps")
_SHORT_TEXTS = ("device", "dtype", "model")
_SHORT_FLAGS = ("prefill_includes_vision",)
_SHORT_KEYS = (*_SHORT_TIMES, *_SHORT_COUNTS, *_SHORT_TEXTS, *_SHORT_FLAGS, "components")


def load_timings(path: Path) -> WallClock:
    """Read either form; a file that is neither is an :class:`InputError` that names the key at fault."""
    document = read_json(path, hint="give the path of a JSON file")
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: expected an object with keys such as prefill_s and decode_s",
            hint='for example {"samples": 20, "new_tokens": 64, "prefill_s": 0.1, "decode_s": 0.7}',
            path=str(path),
        )
    try:
        if isinstance(document.get("samples"), list):
            return _from_engine(document, str(path))
        if isinstance(document.get("runs"), list):
            return _from_program(document, path)
        return _from_short_form(document, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not the shape of a timings file ({type(error).__name__}: {error})"
        ) from error


def check_engine_document(document: dict[str, Any], source: str) -> None:
    """Raise :class:`InputError` where a timings document of the engine has another shape, or invalid numbers."""
    try:
        from_plain(_EngineDocument, document, "timings")
    except InputError as error:
        raise InputError(
            f"{source}: not the shape of a timings file ({error.message})", path=source
        ) from error


def _from_engine(document: dict[str, Any], source: str) -> WallClock:
    check_engine_document(document, source)
    workload = from_plain(Workload, document["workload"], f"{source}.workload")
    samples = document["samples"]
    repeats = [repeat for sample in samples for repeat in sample["repeats"]]
    steps = [float(max(0, s["new_tokens"] - 1)) for s in samples for _ in s["repeats"]]
    batch = [float(s.get("batch_size") or 1) for s in samples for _ in s["repeats"]]
    names = sorted({name for repeat in repeats for name in repeat.get("components") or {}})
    first = [_sum(_before_prefill(r), r.get("prefill_s")) for r in repeats]
    per_token = [token for repeat in repeats for token in repeat.get("token_s") or []]
    timings = Timings(
        preprocess_s=describe([r.get("preprocess_s") for r in repeats]),
        vision_s=describe([r.get("vision_s") for r in repeats]),
        encode_s=describe([r.get("encode_s") for r in repeats]),
        prefill_s=describe([r.get("prefill_s") for r in repeats]),
        ttft_s=describe(first),
        decode_s=describe([r.get("decode_s") for r in repeats]),
        tpot_s=describe(per_token)
        or describe([_ratio(r.get("decode_s"), n) for r, n in zip(repeats, steps, strict=True)]),
        tokens_per_s=describe(
            [_ratio(n * b, r.get("decode_s")) for r, n, b in zip(repeats, steps, batch, strict=True)]
        ),
        components=_described(
            {name: [(r.get("components") or {}).get(name) for r in repeats] for name in names}
        ),
        source=source,
        repeats=max((len(sample["repeats"]) for sample in samples), default=None),
        stopped=_stopped(document.get("measuring")),
        interval_ratio=repeat_interval_ratio(samples),
    )
    sizes = [int(s.get("batch_size") or 1) for s in samples]
    workload.batch_size = _as_run(sizes)
    workload.samples = workload.samples or len(samples)
    workload.new_tokens = workload.new_tokens or mean_of([s["new_tokens"] for s in samples])
    return WallClock(
        _with_typical_values(timings, samples),
        workload,
        decode_steps=mean_of(steps),
        prefill_includes_vision=False,
        metrics=measurement_metrics(samples),
        repeat_spread=repeat_spread(samples),
        sample_totals=sample_totals(samples),
        notes=[*_engine_notes(document), *_batch_notes(document.get("configured_batch_size"), sizes)],
        samples=sample_rows(samples),
    )


def _with_typical_values(timings: Timings, samples: Sequence[_SampleEntry]) -> Timings:
    """Set the value that pages show: the median of each sample's repeats, averaged over the samples.

    The median is robust against one stalled repeat; means over samples are additive over phases and match the mean work.
    """
    rows = sample_rows(samples)
    for name in _SHORT_TIMES:
        _set_typical(getattr(timings, name), [getattr(row, name) for row in rows])
    _set_typical(
        timings.tokens_per_s,
        [
            _ratio(float(sample.get("batch_size") or 1), row.tpot_s)
            for row, sample in zip(rows, samples, strict=True)
        ],
    )
    for name, stat in timings.components.items():
        _set_typical(
            stat,
            [
                _middle([(r.get("components") or {}).get(name) for r in sample["repeats"]])
                for sample in samples
            ],
        )
    return timings


def _set_typical(stat: Stat | None, by_sample: Sequence[float | None]) -> None:
    if stat is not None:
        stat.typical = mean_of(by_sample)


def _before_prefill(repeat: Mapping[str, Any]) -> float:
    """Return the time of what comes before the prefill: the vision tower, or the encoder of an encoder-decoder."""
    return sum(repeat.get(f"{phase}_s") or 0.0 for phase in BEFORE_PREFILL)


def _as_run(sizes: list[int]) -> float | None:
    """Return the batch size that ran; the mean where batches differ."""
    mean = mean_of([float(size) for size in sizes])
    return int(mean) if mean is not None and mean.is_integer() else mean


def _engine_notes(document: Mapping[str, Any]) -> list[str]:
    """Return notes on what the engine changed or cut short; random weights are recorded in ``workload.weights``."""
    notes = document.get("notes")
    return (
        [str(note) for note in notes if not str(note).startswith("random weights")]
        if isinstance(notes, list)
        else []
    )


def _batch_notes(wanted: int | None, sizes: list[int]) -> list[str]:
    """Return a note if there were too few samples for the batch size."""
    short = [size for size in sizes if wanted is not None and size < wanted]
    if not short:
        return []
    ran = f"batches of {sizes[0]}" if len(set(sizes)) == 1 else f"batches of {max(sizes)} to {min(sizes)}"
    return [
        f"infer.batch_size={wanted}, but the data set gave {sum(sizes)} samples: {ran} were run "
        f"(mean {units.number(sum(sizes) / len(sizes))}); the times are theirs."
    ]


def _from_program(document: dict[str, Any], path: Path) -> WallClock:
    program, runs = document["program"], document["runs"]
    for number, run in enumerate(runs):
        _require(
            is_duration(run["wall_s"]), path, f"runs[{number}].wall_s", "a positive number", run["wall_s"]
        )
    seconds = [float(run["wall_s"]) for run in runs if run.get("ok", True)]
    return WallClock(
        Timings(program_s=describe(seconds), source=str(path)),
        Workload(model=str(program["name"]), program=[str(word) for word in program.get("argv") or ()]),
        decode_steps=None,
        prefill_includes_vision=False,
        notes=[]
        if len(seconds) == len(runs)
        else [f"{len(runs) - len(seconds)} of {len(runs)} runs of the program failed."],
    )


def _stopped(measuring: Any) -> Stopped | None:
    """Return why repeating ended; an unknown reason of a later release is dropped."""
    reason = measuring.get("stopped") if isinstance(measuring, dict) else None
    return cast("Stopped", reason) if reason in get_args(Stopped) else None


def _from_short_form(document: dict[str, Any], path: Path) -> WallClock:
    _check_short_form(document, path)
    times = {name: describe([document.get(name)]) for name in _SHORT_TIMES}
    tokens, decode_s = document.get("new_tokens"), document.get("decode_s")
    steps = document.get("decode_steps") or tokens
    flag = document.get("prefill_includes_vision")
    nested = document.get("vision_s") is None if flag is None else bool(flag)
    if times["ttft_s"] is None and document.get("prefill_s") is not None:
        before = _before_prefill(document) - (document.get("vision_s") or 0.0 if nested else 0.0)
        times["ttft_s"] = describe([document["prefill_s"] + before])
    if times["tpot_s"] is None:
        times["tpot_s"] = describe([_ratio(decode_s, steps)])
    batch = document.get("batch_size")
    timings = Timings(
        preprocess_s=times["preprocess_s"],
        vision_s=times["vision_s"],
        encode_s=times["encode_s"],
        prefill_s=times["prefill_s"],
        ttft_s=times["ttft_s"],
        decode_s=times["decode_s"],
        tpot_s=times["tpot_s"],
        tokens_per_s=describe([_ratio((steps or 0) * (batch or 1), decode_s)] if steps else []),
        components=_described({name: [value] for name, value in (document.get("components") or {}).items()}),
        source=str(path),
    )
    workload = Workload(
        model=document.get("model"),
        dtype=document.get("dtype"),
        batch_size=batch,
        samples=document.get("samples"),
        prompt_tokens=document.get("prompt_tokens"),
        image_tokens=document.get("image_tokens"),
        new_tokens=tokens,
    )
    return WallClock(
        timings,
        workload,
        decode_steps=steps,
        prefill_includes_vision=nested,
        device_name=document.get("device"),
    )


def _nearest(key: str) -> str:
    near = nearest_key(key, _SHORT_KEYS)
    return f"did you mean '{near}'?" if near else f"known keys: {', '.join(_SHORT_KEYS)}"


def _check_short_form(document: dict[str, Any], path: Path) -> None:
    for key, value in document.items():
        if key not in _SHORT_KEYS:
            shown = reprlib.repr(key)
            raise InputError(f"{path}: unknown key {shown}", hint=_nearest(key), key=key)
        if value is not None:
            _check_entry(key, value, path)
    for key in ("samples", "batch_size"):
        found = document.get(key)
        if found is None:
            continue
        if not float(found).is_integer():
            raise InputError(
                f"{path}: {key} must be a whole number, not {found!r}",
                hint="leave a key out when it is not known",
                key=key,
            )
        document[key] = int(found)


def _check_entry(key: str, value: Any, path: Path) -> None:
    if key in _SHORT_TIMES:
        _require(is_duration(value), path, key, _TIME, value)
    elif key in _SHORT_COUNTS:
        _require(is_count(value), path, key, f"a positive number up to {MOST_COUNT:g}", value)
    elif key in _SHORT_TEXTS:
        _require(isinstance(value, str), path, key, "text", value)
    elif key in _SHORT_FLAGS:
        _require(isinstance(value, bool), path, key, "true or false", value)
    else:
        _require(isinstance(value, dict), path, key, "an object", value)
        for name, seconds in value.items():
            _require(is_duration(seconds), path, f"{key}.{name}", _TIME, seconds)


_TIME = f"a positive number of seconds, up to {MOST_SECONDS:g}"


def _require(condition: bool, path: Path, key: str, wanted: str, value: object) -> None:
    if not condition:
        raise InputError(
            f"{path}: {key} must be {wanted}, not {reprlib.repr(value)}",
            hint="leave a key out when it is not known",
            key=key,
        )


def _described(values: dict[str, list[float | None]]) -> dict[str, Stat]:
    return {name: stat for name, items in values.items() if (stat := describe(items)) is not None}


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
