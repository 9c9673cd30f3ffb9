"""Operators, comparison and identity: what they mean when neither operand itself has an answer.

In: operands, as Values.  Out: what the interpreter computes, by the methods of both classes, in
its order; the TypeErrors have CPython's text.
Invariant: two objects from outside that are told apart are guarded to be two (`Distinct`).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Distinct, SameObject
from jitshape.frontend.lookup import MISSING, Lookup, class_attribute, derives
from jitshape.frontend.sources import Held
from jitshape.frontend.values.base import Value

_NAMES = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "@": "matmul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "^": "xor",
    "|": "or",
}
FORWARD = {op: f"__{name}__" for op, name in _NAMES.items()}
REFLECTED = {op: f"__r{name}__" for op, name in _NAMES.items()}
INPLACE = {f"{op}=": f"__i{name}__" for op, name in _NAMES.items()}
UNARY = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
COMPARE = {
    "<": "__lt__",
    "<=": "__le__",
    "==": "__eq__",
    "!=": "__ne__",
    ">": "__gt__",
    ">=": "__ge__",
}
SWAPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}


class Operators(Lookup):
    """The part of the machine that computes with operators."""

    if TYPE_CHECKING:
        const: Any
        stop: Any
        throw: Any

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """`a op b` or, for op "+=" and so on, the in-place operation."""
        plain = op
        if len(op) > 1 and op[-1] == "=":
            result = a.binary(self, op, b, False)
            if result is not NotImplemented:
                return result
            plain = op[:-1]
        if self._reflected_first(plain, a, b):
            result = b.binary(self, plain, a, True)
            if result is NotImplemented:
                result = a.binary(self, plain, b, False)
        else:
            result = a.binary(self, plain, b, False)
            if result is NotImplemented:
                result = b.binary(self, plain, a, True)
        if result is NotImplemented:
            left, right = a.python_type().__name__, b.python_type().__name__
            shown = "** or pow()" if op == "**" else op
            self.throw(
                TypeError, f"unsupported operand type(s) for {shown}: '{left}' and '{right}'"
            )
        return result

    def _reflected_first(self, op: str, a: Value, b: Value) -> bool:
        """A right operand of a proper subclass goes first if it has its own method."""
        left, right = a.python_type(), b.python_type()
        if left is right or not derives(right, left):
            return False
        name = REFLECTED[op]
        self.guard_class(left, name)
        self.guard_class(right, name)
        mine = class_attribute(right, name)
        return mine is not MISSING and mine is not class_attribute(left, name)

    def default_binary(self, value: Value, op: str, other: Value, reflected: bool) -> Any:
        if reflected and value.python_type() is other.python_type():
            return NotImplemented
        names = REFLECTED if reflected else INPLACE if op in INPLACE else FORWARD
        return self._ask(value, names[op], other)

    def _ask(self, value: Value, name: str, other: Value) -> Any:
        """The result of a method that may answer NotImplemented."""
        result = self.call_special(value, name, other)
        if result is None or (result.is_constant() and result.constant() is NotImplemented):
            return NotImplemented
        return result

    def default_unary(self, value: Value, op: str) -> Value:
        result = self.call_special(value, UNARY[op])
        if result is None:
            name = value.python_type().__name__
            self.throw(TypeError, f"bad operand type for unary {op}: '{name}'")
        return result

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """The rich comparison `a op b`."""
        left, right = a.python_type(), b.python_type()
        swapped, result = SWAPPED[op], NotImplemented
        first = left is not right and derives(right, left) and self.defines(b, COMPARE[swapped])
        if first:
            result = b.compare(self, swapped, a)
        if result is NotImplemented:
            result = a.compare(self, op, b)
        if result is NotImplemented and not first:
            result = b.compare(self, swapped, a)
        if result is not NotImplemented:
            return result
        if op in ("==", "!="):
            return self.const(self.identical(a, b) == (op == "=="))
        self.throw(
            TypeError,
            f"'{op}' not supported between instances of '{left.__name__}' and '{right.__name__}'",
        )

    def default_compare(self, value: Value, op: str, other: Value) -> Any:
        cls = value.python_type()
        if class_attribute(cls, COMPARE[op]) is not object.__dict__[COMPARE[op]]:
            return self._ask(value, COMPARE[op], other)
        self.type_lookup(cls, COMPARE[op])
        if op == "!=" and class_attribute(cls, "__eq__") is not object.__dict__["__eq__"]:
            equal = value.compare(self, "==", other)
            return equal if equal is NotImplemented else self.const(not equal.truth(self))
        if op in ("==", "!=") and self.identical(value, other):
            return self.const(op == "==")
        return NotImplemented

    def identical(self, a: Value, b: Value) -> bool:
        """`a is b`."""
        if a is b:
            return True
        if a.is_constant() and b.is_constant() and a.python_type() is not b.python_type():
            return False
        if getattr(a, "from_outside", False) and getattr(b, "from_outside", False):
            return self._same_text(a, b)
        if a.is_constant() and b.is_constant():
            return _same_constant(a.constant(), b.constant())
        self.apart(a, b)
        return False

    def _same_text(self, a: Any, b: Any) -> bool:
        if a.real is not b.real:
            self.apart(a, b)
        elif a.source != b.source:
            self.guard(a.source, SameObject(b.source))
        return a.real is b.real

    def is_same(self, a: Value, b: Value) -> bool:
        """`a is b` where the program asks: two symbolic numbers are told apart by their values."""
        if a is not b and a.python_type() is b.python_type():
            a, b = self.specialised(a), self.specialised(b)
        return self.identical(a, b)

    def specialised(self, value: Value) -> Value:
        """A symbolic number as the literal that it is in this call; others as they are."""
        specialize = getattr(value, "specialize", None)
        return value if specialize is None else specialize(self)

    def apart(self, a: Value, b: Value) -> None:
        """Guard that two objects from outside are not one; of different classes they cannot be."""
        if a.source is None or b.source is None or a.python_type() is not b.python_type():
            return
        if a.python_type() in (int, float):  # whoever asks then compares them
            return
        if not (isinstance(a.source, Held) and isinstance(b.source, Held)):
            self.guard(a.source, Distinct(b.source))

    def as_int(self, value: Value) -> int:
        """`operator.index`, as a real number."""
        if value.is_constant():
            try:
                return operator.index(value.constant())
            except TypeError as error:
                self.throw(TypeError, *error.args)
        result = self.call_special(value, "__index__")
        if result is None:
            name = value.python_type().__name__
            self.throw(TypeError, f"'{name}' object cannot be interpreted as an integer")
        self.check_index(result)
        return self.as_int(result)

    def check_index(self, result: Value) -> None:
        """What `__index__` gave must be an int; of a subclass the interpreter warns."""
        cls = result.python_type()
        if not issubclass(cls, int):
            self.throw(TypeError, f"__index__ returned non-int (type {cls.__name__})")
        if cls is not int:
            self.stop("warning", f"__index__ gives a {cls.__name__}, which is deprecated")


def _same_constant(a: Any, b: Any) -> bool:
    """Identity of constants.  A literal may stand for an object that an equal guarded one is, and
    small numbers are single objects; text that was put together is a new object each time."""
    return a is b or (type(a) is type(b) is int and a == b and -5 <= a <= 256)
