"""Payloads of collectives that a program calls on the host, from the shapes of their inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.ingest.kineto.calls import OPERATORS, Signature, read_operator_calls
from llm_perf_opt.model.limits import MOST_BYTES

_CATEGORIES = OPERATORS | {"user_annotation"}
_ANNOTATIONS = {
    f"{library}:{name}": kind
    for library in ("gloo", "ucc", "mpi")
    for name, kind in (
        ("all_reduce", "all_reduce"),
        ("broadcast", "broadcast"),
        ("reduce_scatter", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
    )
}
"""Annotations whose input is the payload; that of an all-gather is a part of it."""
_ALL_GATHER = "_c10d_functional::all_gather_into_tensor"
_CALLS = {**_ANNOTATIONS, _ALL_GATHER: "all_gather"}
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8, "short": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def host_payloads(path: Path, threads: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return kind and bytes of a trace's collectives in the order of their calls; -1 bytes where the shape does not tell."""
    calls = read_operator_calls(path, frozenset(_CALLS), threads, categories=_CATEGORIES)
    order = np.argsort(calls.start_ns, kind="stable").tolist()
    signatures = [calls.signatures[calls.signature[row]] for row in order]
    return [(_CALLS[one.name], _payload(one)) for one in signatures]


def _payload(call: Signature) -> int:
    dims, size = call.dims[0] if call.dims else None, _ELEMENT_BYTES.get(call.types[0] if call.types else "")
    counts = list(dims) if isinstance(dims, list | tuple) else []
    if size is None or not counts or not all(isinstance(one, int) and one >= 0 for one in counts):
        return -1
    payload = math.prod(counts) * size
    if call.name == _ALL_GATHER:
        # What comes out is larger, by the number of ranks that the call is given.
        ranks = call.concrete[1] if len(call.concrete) > 1 else ""
        if not ranks.isdigit():
            return -1
        payload *= int(ranks)
    return payload if payload <= MOST_BYTES else -1
