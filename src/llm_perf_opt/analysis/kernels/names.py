"""Readable short names for kernels; the rules are data (``kernel_names.yaml``). The full name is always kept."""

from __future__ import annotations

import re
from functools import lru_cache

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.core.packaged import packaged_rows

_TYPES = (
    (
        "bf16",
        r"__nv_bfloat16\b|\bc10::BFloat16\b|cutlass::bfloat16_t|\bnv_bfloat16\b|\b__hip_bfloat16\b|std::bfloat16_t|\bbfloat16\b|\bbf16\b",
    ),
    ("f16", r"\b__half2?\b|\bc10::Half\b|cutlass::half_t|\b_Float16\b|\bhalf\b|\bfp16\b|\bf16\b"),
    ("fp8", r"__nv_fp8_e\dm\d|Float8_e\dm\d|float_e\dm\d_t|\be\dm\d\b"),
    ("f32", r"\bfloat\b|\bf32\b"),
    ("f64", r"\bdouble\b|\bf64\b"),
    ("i64", r"\blong\b|\bint64_t\b"),
    ("i8", r"\bint8_t\b|\bsigned char\b"),
    ("i32", r"\bint\b(?!\))|\bint32_t\b"),
    ("bool", r"\bbool\b(?!\))"),
)
_TYPE_PATTERN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _TYPES))
_LAMBDA_ARGUMENT = re.compile(r"[\[{]lambda\((?P<type>[^()]*)\)")
_RETURN_TYPE = re.compile(r"^(?:void|std::enable_if<.*?>::type|__global__)\s+")
_LONGEST = 80


@lru_cache(maxsize=1)
def name_rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        (re.compile(row["pattern"]), row["name"])
        for row in packaged_rows("llm_perf_opt.analysis.kernels", "kernel_names.yaml")
    )


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a readable name, at most 80 characters."""
    name = demangled(name)
    for pattern, template in name_rules():
        match = pattern.search(name)
        if match:
            groups = {key: value or "" for key, value in match.groupdict().items()}
            text = template.format_map({**groups, "type": _element_type(name)})
            return _trimmed(" ".join(text.split()))
    return _trimmed(f"{bare_name(name)} {_element_type(name)}".strip() if "<" in name else bare_name(name))


def bare_name(name: str) -> str:
    """Drop return type, namespaces, template arguments and parameters: ``void a::b<int>(T1)`` → ``b``."""
    text = _RETURN_TYPE.sub("", name.strip())
    text = text.replace("<unnamed>", "").replace("(anonymous namespace)", "")
    outside: list[str] = []
    depth = 0
    for letter in text:
        if letter in "<([":
            if depth == 0 and letter == "(" and outside:
                break
            depth += 1
        elif letter in ">)]":
            depth = max(0, depth - 1)
        elif depth == 0:
            outside.append(letter)
    bare = "".join(outside).strip().rpartition("::")[2].strip()
    return bare.split()[-1] if bare.split() else name


def _element_type(name: str) -> str:
    """The first element type of the template arguments, else of the last lambda's argument."""
    lambdas = _LAMBDA_ARGUMENT.findall(name)
    for text in [one for one in reversed(lambdas) if one] if lambdas else []:
        found = _TYPE_PATTERN.search(text)
        if found and found.lastgroup != "i32":
            return str(found.lastgroup)
    arguments = name[name.find("<") :] if "<" in name else ""
    for found in _TYPE_PATTERN.finditer(arguments):
        if found.lastgroup not in ("i32", "bool"):
            return str(found.lastgroup)
    return ""


def _trimmed(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
