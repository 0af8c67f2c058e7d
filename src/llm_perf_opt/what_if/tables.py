"""Tables of a simulated server: loads, memory, capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, columns, num, text
from llm_perf_opt.what_if.serving import Capacity, ServingRow

_FITS = {True: "yes", False: "no", None: ""}
Format = Callable[[float | None], str]


def serving_table(rows: Sequence[ServingRow]) -> Table:
    """Return one row per device and load: expected values with their ranges."""
    body = [
        Row(
            [
                text(_devices(row.device, row.tensor_parallel)),
                text(row.dtype),
                text(_load(row)),
                _ranged(
                    row.ttft_expected_s, row.ttft_expected_low_s, row.ttft_expected_high_s, units.seconds
                ),
                _ranged(row.itl_expected_s, row.itl_expected_low_s, row.itl_expected_high_s, units.seconds),
                _ranged(row.e2e_expected_s, row.e2e_expected_low_s, row.e2e_expected_high_s, units.seconds),
                _ranged(row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high, units.count),
                _ranged(row.requests_per_s, row.requests_per_s_low, row.requests_per_s_high, _rate),
                _ranged(row.goodput_per_s, row.goodput_per_s_low, row.goodput_per_s_high, _rate),
                _ranged(
                    row.cost_per_million_tokens,
                    row.cost_per_million_tokens_low,
                    row.cost_per_million_tokens_high,
                    _amount,
                ),
                text("" if row.joules_per_token is None else f"{row.joules_per_token:.3g} J"),
                text(_FITS[row.fits]),
                num(row.largest_concurrency, units.count),
            ]
        )
        for row in rows
    ]
    header = columns(
        "device",
        "data type",
        "load",
        Column("TTFT", True, "time to the first token, mean"),
        Column("ITL", True, "time between tokens, mean"),
        Column("E2E", True, "whole request, mean"),
        Column("tokens/s", True, "output tokens of the server"),
        "requests/s#",
        "goodput/s#",
        Column("cost per M tokens", True, "output tokens, in the unit of --price"),
        Column("J/token at most", True, "devices at their power limit"),
        Column("fits", help="whether every request fits in the KV cache at full length"),
        Column("largest concurrency", True, "requests of full length that fit in the KV cache"),
    )
    return Table(header, body).without_empty_columns()


def memory_table(rows: Sequence[ServingRow]) -> Table:
    """Return the memory of one device, once per device, data type and number of devices."""
    seen: dict[tuple[str, str, int, int], ServingRow] = {}
    for row in rows:
        seen.setdefault((row.device, row.dtype, row.tensor_parallel, row.prompt_tokens), row)
    body = [
        Row(
            [
                text(_devices(row.device, row.tensor_parallel)),
                text(row.dtype),
                num(row.memory.total_bytes, units.size),
                num(row.memory.weights_bytes, units.size),
                num(row.memory.activations_bytes, units.size),
                num(row.memory.runtime_bytes, units.size),
                num(row.memory.kv_cache_bytes, units.size),
                num(row.memory.fragmentation_bytes, units.size),
                num(row.memory.kv_tokens, units.count),
            ]
        )
        for row in seen.values()
        if row.memory is not None
    ]
    header = columns(
        "device",
        "data type",
        "memory#",
        "weights#",
        "activations#",
        "runtime#",
        Column("KV cache", True, "what is left"),
        Column("of it unused", True, "blocks that are not full, at the largest concurrency"),
        "KV tokens#",
    )
    return Table(header, body)


def capacity_table(found: Sequence[Capacity]) -> Table:
    """Return the devices that a target load needs."""
    body = [
        Row(
            [
                text(_devices(one.device, one.tensor_parallel)),
                text(one.dtype),
                _ranged(
                    one.rate_per_replica_s, one.rate_per_replica_low_s, one.rate_per_replica_high_s, _rate
                ),
                num(one.target_rate_per_s, _rate),
                num(one.replicas, units.count),
                _ranged(one.devices, one.devices_low, one.devices_high, units.count),
                text(one.note),
            ]
        )
        for one in found
    ]
    header = columns(
        "device",
        "data type",
        Column("requests/s per server", True, "highest rate at which 90 % of the requests meet the limits"),
        "target requests/s#",
        "servers#",
        "devices#",
        "note",
    )
    return Table(header, body).without_empty_columns()


def _devices(name: str, ranks: int) -> str:
    return name if ranks == 1 else f"{ranks} × {name}"


def _load(row: ServingRow) -> str:
    return f"{row.concurrency} in flight" if row.concurrency is not None else f"{row.rate_per_s:g}/s"


def _ranged(value: float | None, low: float | None, high: float | None, form: Format) -> Cell:
    if value is None or low is None or high is None or low == high:
        return num(value, form)
    return text(f"{form(value)} ({form(low)} to {form(high)})")


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _amount(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
