"""Readable C++ names for kernels whose recorder left them mangled."""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

# The codes of the mangling: built-in types, operators, standard abbreviations.


_BUILTINS = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
    "g": "__float128",
    "z": "...",
}
_LONG_BUILTINS = {
    "Dd": "decimal64",
    "De": "decimal128",
    "Df": "decimal32",
    "Dh": "half",
    "Di": "char32_t",
    "Ds": "char16_t",
    "Du": "char8_t",
    "Da": "auto",
    "Dc": "decltype(auto)",
    "Dn": "decltype(nullptr)",
}
_LITERAL_ENDINGS = {
    "int": "",
    "unsigned int": "u",
    "long": "l",
    "unsigned long": "ul",
    "long long": "ll",
    "unsigned long long": "ull",
}
"""What is written behind a literal of the type; other types are written before it, in brackets."""
_STANDARD = {
    "Sa": "std::allocator",
    "Sb": "std::basic_string",
    "Ss": "std::string",
    "Si": "std::istream",
    "So": "std::ostream",
    "Sd": "std::iostream",
}
OPERATORS = {
    "nw": "new",
    "na": "new[]",
    "dl": "delete",
    "da": "delete[]",
    "ps": "+",
    "ng": "-",
    "ad": "&",
    "de": "*",
    "co": "~",
    "pl": "+",
    "mi": "-",
    "ml": "*",
    "dv": "/",
    "rm": "%",
    "an": "&",
    "or": "|",
    "eo": "^",
    "aS": "=",
    "pL": "+=",
    "mI": "-=",
    "mL": "*=",
    "dV": "/=",
    "rM": "%=",
    "aN": "&=",
    "oR": "|=",
    "eO": "^=",
    "ls": "<<",
    "rs": ">>",
    "lS": "<<=",
    "rS": ">>=",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "ss": "<=>",
    "nt": "!",
    "aa": "&&",
    "oo": "||",
    "pp": "++",
    "mm": "--",
    "cm": ",",
    "pm": "->*",
    "pt": "->",
    "cl": "()",
    "ix": "[]",
}
_UNARY = frozenset({"ps", "ng", "ad", "de", "co", "nt"})
_BINARY = frozenset(
    {
        *("pl", "mi", "ml", "dv", "rm", "an", "or", "eo", "ls", "rs"),
        *("eq", "ne", "lt", "gt", "le", "ge", "ss", "aa", "oo"),
    }
)


# The mangled text with a read position, and the parts from which a readable name is built.


_BASE_36 = string.digits + string.ascii_uppercase
_MOST_DIGITS = 9
_LONGEST = 200_000
"""Characters of a readable name: a few mangled ones can stand for very many (substitutions of substitutions)."""


class _NotMangled(ValueError):
    """The text is not a mangled name, or uses a part of the grammar that kernel names do not."""


@dataclass(frozen=True, slots=True)
class Part:
    """A type, name or value: the text before and after the declared entity."""

    left: str
    right: str = ""
    open: bool = False
    """A function or an array: a pointer to it needs brackets."""
    pack: tuple[Part, ...] | None = None
    """Arguments of a parameter pack; the other fields are empty then."""

    def __str__(self) -> str:
        if self.pack is not None:
            return ", ".join(str(one) for one in self.pack)
        return self.left + self.right


def over(part: Part, change: Callable[[Part], Part]) -> Part:
    """Change a part, or every argument of a pack."""
    if part.pack is None:
        return change(part)
    return Part("", pack=tuple(over(one, change) for one in part.pack))


def _pointing(part: Part, mark: str) -> Part:
    """Return a pointer or reference to a part: ``void (*)(int)`` for functions, ``T*`` for the rest."""
    if not part.open:
        if mark in ("&", "&&") and part.left.endswith("&"):
            # References collapse: one of them is an lvalue reference, and so is the whole.
            kept = part.left.removesuffix("&&") if part.left.endswith("&&") and mark == "&" else part.left
            return replace(part, left=kept if kept is part.left else kept + "&")
        return replace(part, left=part.left + mark)
    if part.left.endswith(("*", "&")) and part.right.startswith(")"):
        return replace(part, left=part.left + mark)
    return Part(f"{part.left} ({mark}", f"){part.right}", open=True)


def joined(parts: list[Part]) -> str:
    """Return arguments with commas; empty packs leave nothing."""
    texts, length = [], 0
    for one in parts:
        text = str(one)
        length += len(text)
        if length > _LONGEST:
            raise _NotMangled("the readable name would be too long")
        if text:
            texts.append(text)
    return ", ".join(texts)


def _in_angles(parts: list[Part]) -> str:
    """Return template arguments; closing brackets are separated by a space, as in traces."""
    inside = joined(parts)
    return f"<{inside} >" if inside.endswith(">") else f"<{inside}>"


class _Cursor:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def looks_at(self, *starts: str) -> bool:
        """Return whether the rest begins with one of these."""
        return self.text.startswith(starts, self.at)

    def take(self, start: str) -> bool:
        """Skip a prefix if it is present."""
        if not self.text.startswith(start, self.at):
            return False
        self.at += len(start)
        return True

    def need(self, start: str) -> None:
        """Skip a prefix that is required."""
        if not self.take(start):
            raise _NotMangled(f"{start!r} expected at {self.at}")

    def next(self, count: int = 1) -> str:
        """Take so many characters."""
        piece = self.text[self.at : self.at + count]
        if len(piece) < count:
            raise _NotMangled("the name ends too early")
        self.at += count
        return piece

    def number(self) -> int:
        """Take a decimal number."""
        digits = self._span(string.digits)
        if not digits:
            raise _NotMangled(f"a number expected at {self.at}")
        return int(digits)

    def sequence(self) -> int:
        """Take ``_``, ``0_``, ``1_``, … (base 36) as 0, 1, 2, …"""
        digits = self._span(_BASE_36)
        self.need("_")
        return int(digits, 36) + 1 if digits else 0

    def decimal_sequence(self) -> int:
        """Take ``_``, ``0_``, ``1_``, … (decimal) as 0, 1, 2, …"""
        digits = self._span(string.digits)
        self.need("_")
        return int(digits) + 1 if digits else 0

    def _span(self, letters: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in letters:
            self.at += 1
        if self.at - start > _MOST_DIGITS:
            raise _NotMangled(f"an impossible number at {start}")
        return self.text[start : self.at]


# Values in mangled names: literals, and what is computed from template arguments.


class _ValueParser(ABC):
    """Reads values; the names and types inside them are read by the whole grammar."""

    def __init__(self, cursor: _Cursor) -> None:
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
            raise _NotMangled("a literal without an end")
        value = cursor.next(end - cursor.at)
        cursor.need("E")
        value = f"-{value[1:]}" if value.startswith("n") else value
        if kind == "bool" and value in ("0", "1"):
            return "true" if value == "1" else "false"
        if kind == "decltype(nullptr)":
            return "nullptr"
        return f"{value}{_LITERAL_ENDINGS[kind]}" if kind in _LITERAL_ENDINGS else f"({kind}){value}"

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
        if code in _UNARY:
            inner = self.expression()
            return f"{OPERATORS[code]}({inner})"
        if code in _BINARY:
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
        raise _NotMangled(f"expression {code!r} at {self.cursor.at}")


# The grammar of mangled names, as far as kernels use it; anything else raises :class:`_NotMangled`.
#
# Written for names that system libraries cannot read: recorders demangle with the C++ library they were built
# with, so the names that still arrive mangled are those an older library does not know (``DF16b``, ``Tn``, or
# Composable Kernel's long lists of arguments). Reading them here gives the same name on every machine.


_QUALIFIERS = {"r": " restrict", "V": " volatile", "K": " const"}
_POINTERS = {"P": "*", "R": "&", "O": "&&"}


class Name:
    """A name read so far, and what its function type needs to know of it."""

    __slots__ = ("endings", "has_arguments", "no_return", "text")

    def __init__(self, text: str, *, has_arguments: bool = False, no_return: bool = False) -> None:
        self.text, self.has_arguments, self.no_return = text, has_arguments, no_return
        self.endings = ""


class _Parser(_ValueParser):
    """Reads one mangled name."""

    def __init__(self, mangled: str) -> None:
        super().__init__(_Cursor(mangled))
        self.substitutions: list[Part] = []
        self.parameters: list[Part] = []

    def whole(self) -> str:
        """Return the readable name of the whole text."""
        self.cursor.need("_Z")
        name = self.encoding()
        if self.cursor.at != len(self.cursor.text):
            raise _NotMangled(f"more behind the name at {self.cursor.at}")
        return name

    # Functions and their names

    def encoding(self) -> str:
        """Read a function (name and types) or a variable."""
        signature, result = self._signature()
        return signature if result is None else f"{result.left} {signature}{result.right}"

    def _signature(self) -> tuple[str, Part | None]:
        """Read a function without its result, and the result; afterwards ``T_`` means what it meant before."""
        around = self.parameters
        name = self.name(outermost=True)
        if self.cursor.at == len(self.cursor.text) or self.cursor.looks_at("E", "."):
            signature, result = name.text, None
        else:
            result = self.type() if name.has_arguments and not name.no_return else None
            signature = f"{name.text}({self._types_until_end()}){name.endings}"
        self.parameters = around
        return signature, result

    def _types_until_end(self) -> str:
        if self.cursor.take("v"):
            return ""
        types = []
        while self.cursor.at < len(self.cursor.text) and not self.cursor.looks_at("E"):
            types.append(self.type())
        return joined(types)

    def name(self, *, outermost: bool = False) -> Name:
        """Read a name; the template arguments of the outermost are what ``T_`` means in its types."""
        cursor = self.cursor
        if cursor.looks_at("N"):
            return self._nested(outermost=outermost)
        if cursor.looks_at("Z"):
            return self._local()
        if cursor.looks_at("S") and not cursor.looks_at("St"):
            name = Name(str(self._substitution()))
        else:
            name = self._unqualified("std::" if cursor.take("St") else "")
            if cursor.looks_at("I"):
                self.substitutions.append(Part(name.text))
        if cursor.looks_at("I"):
            name = Name(
                name.text + self.template_arguments(outermost=outermost),
                has_arguments=True,
                no_return=name.no_return,
            )
        return name

    def _nested(self, *, outermost: bool) -> Name:
        cursor = self.cursor
        cursor.need("N")
        endings = "".join(text for code, text in _QUALIFIERS.items() if cursor.take(code))
        endings += " &" if cursor.take("R") else " &&" if cursor.take("O") else ""
        name = Name("")
        while not cursor.take("E"):
            name, known = self._prefix(name, outermost=outermost)
            if not known and not cursor.looks_at("E"):
                self.substitutions.append(Part(name.text))
        name.endings = endings
        return name

    def _prefix(self, before: Name, *, outermost: bool) -> tuple[Name, bool]:
        """Read one more step of a nested name; the second value: whether it already is a substitution."""
        cursor = self.cursor
        if cursor.looks_at("I"):
            arguments = self.template_arguments(outermost=outermost)
            return Name(before.text + arguments, has_arguments=True, no_return=before.no_return), False
        if cursor.looks_at("S") and not cursor.looks_at("St"):
            return Name(str(self._substitution())), True
        if cursor.looks_at("St"):
            cursor.take("St")
            return Name("std"), True
        if cursor.looks_at("T"):
            return Name(str(self.parameter())), False
        if cursor.looks_at("DT", "Dt"):
            return Name(str(self._decltype())), False
        return self._unqualified(f"{before.text}::" if before.text else ""), False

    def _local(self) -> Name:
        """Read something declared inside a function."""
        cursor = self.cursor
        cursor.need("Z")
        outer, _ = self._signature()
        cursor.need("E")
        if cursor.take("s"):
            inner = Name("string literal")
        else:
            if cursor.take("d"):
                if not cursor.looks_at("_"):
                    cursor.number()
                cursor.need("_")
            inner = self.name()
        if cursor.take("__"):
            cursor.number()
            cursor.need("_")
        elif cursor.looks_at("_"):
            cursor.take("_")
            cursor.next()
        inner.text = f"{outer}::{inner.text}"
        return inner

    def _unqualified(self, prefix: str) -> Name:
        cursor = self.cursor
        cursor.take("L")  # internal linkage
        name = self._bare(prefix)
        while cursor.take("B"):
            name.text += f"[abi:{self.identifier()}]"
        return name

    def _bare(self, prefix: str) -> Name:
        cursor = self.cursor
        if cursor.looks_at(*"0123456789"):
            return Name(prefix + self.identifier())
        if cursor.looks_at("C1", "C2", "C3", "D0", "D1", "D2"):
            mark = "~" if cursor.next(2)[0] == "D" else ""
            own = prefix.removesuffix("::").partition("<")[0].rpartition("::")[2]
            return Name(f"{prefix}{mark}{own}", no_return=True)
        if cursor.take("Ut"):
            return Name(f"{prefix}{{unnamed type#{cursor.decimal_sequence() + 1}}}")
        if cursor.take("Ul"):
            return Name(prefix + self._lambda())
        if cursor.take("cv"):
            return Name(f"{prefix}operator {self.type()}", no_return=True)
        code = cursor.next(2)
        if code not in OPERATORS:
            raise _NotMangled(f"{code!r} at {cursor.at}")
        gap = " " if OPERATORS[code][0].isalpha() else ""
        return Name(f"{prefix}operator{gap}{OPERATORS[code]}")

    def _lambda(self) -> str:
        types = self._types_until_end()
        self.cursor.need("E")
        return f"{{lambda({types})#{self.cursor.decimal_sequence() + 1}}}"

    def identifier(self) -> str:
        """Read a name with its length before it."""
        text = self.cursor.next(self.cursor.number())
        return (
            "(anonymous namespace)" if text.startswith(("_GLOBAL__N", "_GLOBAL_.N", "_GLOBAL_$N")) else text
        )

    # Template arguments

    def template_arguments(self, *, outermost: bool = False) -> str:
        """Read ``I … E``."""
        self.cursor.need("I")
        arguments: list[Part] = []
        if outermost:
            self.parameters = arguments
        while not self.cursor.take("E"):
            arguments.append(self._argument())
        return _in_angles(arguments)

    def _argument(self) -> Part:
        cursor = self.cursor
        if cursor.take("J"):
            inside = []
            while not cursor.take("E"):
                inside.append(self._argument())
            return Part("", pack=tuple(inside))
        if cursor.take("X"):
            value = self.expression()
            cursor.need("E")
            return Part(value)
        if cursor.looks_at("L"):
            return Part(self.literal())
        if cursor.take("Tn"):  # the kind of the next argument, where the template does not define it
            self.type()
            return self._argument()
        if cursor.take("Ty"):
            return self._argument()
        return self.type()

    def parameter(self) -> Part:
        """Read ``T_``, ``T0_``, …: an argument of the outermost template."""
        self.cursor.need("T")
        place = self.cursor.decimal_sequence()
        if place >= len(self.parameters):
            raise _NotMangled(f"template parameter {place} is not there")
        return self.parameters[place]

    # Types

    def type(self) -> Part:
        """Read a type."""
        cursor = self.cursor
        code = cursor.text[cursor.at : cursor.at + 1]
        if code in _BUILTINS:
            return Part(_BUILTINS[cursor.next()])
        if code in _QUALIFIERS:
            found = self._qualified()
        elif code in _POINTERS:
            mark = _POINTERS[cursor.next()]
            found = over(self.type(), lambda inner: _pointing(inner, mark))
        elif code == "D":
            return self._long_code()
        elif code == "S" and not cursor.looks_at("St"):
            return self._substituted_type()
        else:
            found = self._compound(code)
        self.substitutions.append(found)
        return found

    def _compound(self, code: str) -> Part:
        cursor = self.cursor
        if code == "F":
            return self._function()
        if code == "A":
            return self._array()
        if code == "M":
            return self._member_pointer()
        if code == "T" and not cursor.looks_at("Ts", "Tu", "Te"):
            return self._parameter_type()
        if code == "T":
            cursor.next(2)
        if code == "u":
            cursor.next()
            return Part(self.identifier())
        if code == "U":
            cursor.next()
            mark = self.identifier()
            return over(self.type(), lambda inner: replace(inner, left=f"{inner.left} {mark}"))
        return Part(self.name().text)

    def _qualified(self) -> Part:
        text = "".join(text for code, text in _QUALIFIERS.items() if self.cursor.take(code))

        def with_text(inner: Part) -> Part:
            if inner.open:
                return replace(inner, right=inner.right + text)
            # A template argument may be const already.
            return inner if inner.left.endswith(text) else replace(inner, left=inner.left + text)

        return over(self.type(), with_text)

    def _parameter_type(self) -> Part:
        found = self.parameter()
        if self.cursor.looks_at("I"):  # a template handed over as an argument, with arguments of its own
            self.substitutions.append(found)
            return Part(str(found) + self.template_arguments())
        return found

    def _substituted_type(self) -> Part:
        found = self._substitution()
        if self.cursor.looks_at("I"):
            found = Part(str(found) + self.template_arguments())
            self.substitutions.append(found)
        return found

    def _long_code(self) -> Part:
        cursor = self.cursor
        if cursor.looks_at("DT", "Dt"):
            found = self._decltype()
        elif cursor.take("Dp"):
            found = self.type()
        elif cursor.take("Do"):
            found = self.type()  # noexcept: irrelevant to readers
        elif cursor.take("Dv"):
            size = cursor.number()
            cursor.need("_")
            found = Part(f"{self.type()} __vector({size})")
        elif cursor.take("DF"):
            return Part(self._float_of_width())
        else:
            code = cursor.next(2)
            if code not in _LONG_BUILTINS:
                raise _NotMangled(f"{code!r} at {cursor.at}")
            return Part(_LONG_BUILTINS[code])
        self.substitutions.append(found)
        return found

    def _float_of_width(self) -> str:
        width = self.cursor.number()
        if self.cursor.take("b"):
            return f"std::bfloat{width}_t"
        ending = "x" if self.cursor.take("x") else ""
        if not ending:
            self.cursor.need("_")
        return f"_Float{width}{ending}"

    def _decltype(self) -> Part:
        self.cursor.next(2)
        value = self.expression()
        self.cursor.need("E")
        return Part(f"decltype ({value})")

    def _function(self) -> Part:
        cursor = self.cursor
        cursor.need("F")
        cursor.take("Y")
        result = self.type()
        arguments = self._types_until_end()
        cursor.need("E")
        return Part(result.left, f"({arguments}){result.right}", open=True)

    def _array(self) -> Part:
        cursor = self.cursor
        cursor.need("A")
        size = "" if cursor.looks_at("_") else self._array_size()
        cursor.need("_")
        inner = self.type()
        return Part(inner.left, f" [{size}]{inner.right}", open=True)

    def _array_size(self) -> str:
        return str(self.cursor.number()) if self.cursor.looks_at(*"0123456789") else self.expression()

    def _member_pointer(self) -> Part:
        self.cursor.need("M")
        owner, inner = self.type(), self.type()
        if inner.open:
            return Part(f"{inner.left} ({owner}::*", f"){inner.right}", open=True)
        return Part(f"{inner} {owner}::*")

    def _substitution(self) -> Part:
        cursor = self.cursor
        code = cursor.text[cursor.at : cursor.at + 2]
        if code in _STANDARD:
            cursor.next(2)
            return Part(_STANDARD[code])
        cursor.need("S")
        place = cursor.sequence()
        if place >= len(self.substitutions):
            raise _NotMangled(f"substitution {place} is not there")
        return self.substitutions[place]


_ENDING = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd|\.(?:cold|part|isra|constprop|llvm|intern)\b[\w.]*)+$")
"""What linkers and ROCm write behind a mangled name."""
_DEMANGLE_LONGEST = 20_000
"""Characters; a longer name is not read."""


@lru_cache(maxsize=65536)
def demangled(name: str) -> str:
    """Return the readable form of a mangled name; other names and unreadable ones are returned unchanged.

    One reading per distinct name: callers need not remember which they have seen.
    """
    if not name.startswith("_Z") or len(name) > _DEMANGLE_LONGEST:
        return name
    try:
        return _Parser(_ENDING.sub("", name)).whole()
    except (_NotMangled, RecursionError):
        return name
