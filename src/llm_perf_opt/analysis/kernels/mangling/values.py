"""Values in mangled names: literals, and what is computed from template arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod

from llm_perf_opt.analysis.kernels.mangling.codes import BINARY, LITERAL_ENDINGS, OPERATORS, UNARY
from llm_perf_opt.analysis.kernels.mangling.text import Cursor, NotMangled, Part


class ValueParser(ABC):
    """Reads values; the names and types inside them are read by the whole grammar."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    @abstractmethod
    def encoding(self) -> str:
        """Read a function (name and types) or a variable."""

    @abstractmethod
    def type(self) -> Part:
        """Read a type."""

    @abstractmethod
    def identifier(self) -> str:
        """Read a name with its length before it."""

    @abstractmethod
    def parameter(self) -> Part:
        """Read ``T_``, ``T0_``, …: an argument of the outermost template."""

    @abstractmethod
    def template_arguments(self, *, outermost: bool = False) -> str:
        """Read ``I … E``."""

    def literal(self) -> str:
        """Read ``L … E``."""
        cursor = self.cursor
        cursor.need("L")
        if cursor.take("_Z"):
            value = self.encoding()
            cursor.need("E")
            return value
        kind = str(self.type())
        end = cursor.text.find("E", cursor.at)
        if end < 0:
            raise NotMangled("a literal without an end")
        value = cursor.next(end - cursor.at)
        cursor.need("E")
        value = f"-{value[1:]}" if value.startswith("n") else value
        if kind == "bool" and value in ("0", "1"):
            return "true" if value == "1" else "false"
        if kind == "decltype(nullptr)":
            return "nullptr"
        return f"{value}{LITERAL_ENDINGS[kind]}" if kind in LITERAL_ENDINGS else f"({kind}){value}"

    def expression(self) -> str:
        """Read a value that is computed from template arguments."""
        cursor = self.cursor
        if cursor.looks_at("L"):
            return self.literal()
        if cursor.looks_at("T"):
            return str(self.parameter())
        if cursor.looks_at(*"0123456789"):
            name = self.identifier()
            return name + (self.template_arguments() if cursor.looks_at("I") else "")
        code = cursor.next(2)
        if code in UNARY:
            inner = self.expression()
            return f"{OPERATORS[code]}({inner})"
        if code in BINARY:
            first, second = self.expression(), self.expression()
            return f"({first}){OPERATORS[code]}({second})"
        return self._other_expression(code)

    def _other_expression(self, code: str) -> str:
        if code == "st":
            return f"sizeof ({self.type()})"
        if code in ("sp", "sZ"):
            inner = self.expression()
            return inner if code == "sp" else f"sizeof...({inner})"
        if code == "sr":
            owner = self.type()
            name = self.identifier()
            return f"{owner}::{name}" + (self.template_arguments() if self.cursor.looks_at("I") else "")
        if code == "qu":
            condition, yes, no = self.expression(), self.expression(), self.expression()
            return f"({condition})?({yes}):({no})"
        raise NotMangled(f"expression {code!r} at {self.cursor.at}")
