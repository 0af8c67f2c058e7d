"""The grammar of mangled names, as far as kernels use it; anything else raises :class:`NotMangled`.

Written for what libraries on the machine cannot read: recorders demangle with the C++ library they were built
with, so the names that still arrive mangled are those an older library does not know (``DF16b``, ``Tn``, or
Composable Kernel's long lists of arguments). Reading them here gives the same name on every machine.
"""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.analysis.kernels.mangling.codes import (
    BUILTINS,
    LONG_BUILTINS,
    OPERATORS,
    STANDARD,
)
from llm_perf_opt.analysis.kernels.mangling.text import (
    Cursor,
    NotMangled,
    Part,
    in_angles,
    joined,
    over,
    pointing,
)
from llm_perf_opt.analysis.kernels.mangling.values import ValueParser

_QUALIFIERS = {"r": " restrict", "V": " volatile", "K": " const"}
_POINTERS = {"P": "*", "R": "&", "O": "&&"}


class Name:
    """A name read so far, and what its function type needs to know of it."""

    __slots__ = ("endings", "has_arguments", "no_return", "text")

    def __init__(self, text: str, *, has_arguments: bool = False, no_return: bool = False) -> None:
        self.text, self.has_arguments, self.no_return = text, has_arguments, no_return
        self.endings = ""


class Parser(ValueParser):
    """Reads one mangled name."""

    def __init__(self, mangled: str) -> None:
        super().__init__(Cursor(mangled))
        self.substitutions: list[Part] = []
        self.parameters: list[Part] = []

    def whole(self) -> str:
        """Return the readable name of the whole text."""
        self.cursor.need("_Z")
        name = self.encoding()
        if self.cursor.at != len(self.cursor.text):
            raise NotMangled(f"more behind the name at {self.cursor.at}")
        return name

    # Functions and their names

    def encoding(self) -> str:
        """Read a function (name and types) or a variable."""
        name = self.name(outermost=True)
        if self.cursor.at == len(self.cursor.text) or self.cursor.looks_at("E", "."):
            return name.text
        result = self.type() if name.has_arguments and not name.no_return else None
        signature = f"{name.text}({self._types_until_end()}){name.endings}"
        return signature if result is None else f"{result.left} {signature}{result.right}"

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
        outer = self.encoding()
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
            raise NotMangled(f"{code!r} at {cursor.at}")
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
        return in_angles(arguments)

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
        if cursor.take("Tn"):  # what kind of argument follows, where the template does not say
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
            raise NotMangled(f"template parameter {place} is not there")
        return self.parameters[place]

    # Types

    def type(self) -> Part:
        """Read a type."""
        cursor = self.cursor
        code = cursor.text[cursor.at : cursor.at + 1]
        if code in BUILTINS:
            return Part(BUILTINS[cursor.next()])
        if code in _QUALIFIERS:
            found = self._qualified()
        elif code in _POINTERS:
            mark = _POINTERS[cursor.next()]
            found = over(self.type(), lambda inner: pointing(inner, mark))
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
            found = self.type()  # noexcept: says nothing that a reader needs
        elif cursor.take("Dv"):
            size = cursor.number()
            cursor.need("_")
            found = Part(f"{self.type()} __vector({size})")
        elif cursor.take("DF"):
            return Part(self._float_of_width())
        else:
            code = cursor.next(2)
            if code not in LONG_BUILTINS:
                raise NotMangled(f"{code!r} at {cursor.at}")
            return Part(LONG_BUILTINS[code])
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
        if code in STANDARD:
            cursor.next(2)
            return Part(STANDARD[code])
        cursor.need("S")
        place = cursor.sequence()
        if place >= len(self.substitutions):
            raise NotMangled(f"substitution {place} is not there")
        return self.substitutions[place]
