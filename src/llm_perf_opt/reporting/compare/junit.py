"""Gates as JUnit XML, which every CI system shows: a test case per gate."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from llm_perf_opt.analysis.compare.gate import UNDECIDED, signed_percent
from llm_perf_opt.core.escape import visible
from llm_perf_opt.model.comparison import Comparison, GateResult

_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def comparison_junit(comparison: Comparison, *, strict: bool) -> str:
    """Return the gates as a test suite; a gate that could not be decided is skipped, with ``strict`` it fails.

    Without a gate there is one case, which says that both sides were compared.
    """
    cases = [_case(gate, strict=strict) for gate in comparison.gates]
    if not cases:
        cases = [
            ElementTree.Element("testcase", classname="llm-perf-opt.compare", name="compared without a gate")
        ]
    suite = ElementTree.Element(
        "testsuite",
        name=_text(f"llm-perf-opt compare: {comparison.b.name} against {comparison.a.name}"),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        errors="0",
    )
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = _text(
        "\n".join([comparison.sentence, *comparison.notes])
    )
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(gate: GateResult, *, strict: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname="llm-perf-opt.compare",
        name=_text(f"gate {gate.metric}:{signed_percent(gate.limit_ratio).replace(' ', '')}"),
    )
    words = _text(f"{gate.status}: {gate.reason}")
    undecided = gate.status in UNDECIDED
    if gate.status in ("regression", "side failed") or (undecided and strict):
        ElementTree.SubElement(case, "failure", type=gate.status, message=words).text = words
    elif undecided:
        ElementTree.SubElement(case, "skipped", message=words)
    return case


def _text(value: str) -> str:
    """Leave out what XML cannot hold, even escaped."""
    return _NOT_XML.sub("", visible(value))
