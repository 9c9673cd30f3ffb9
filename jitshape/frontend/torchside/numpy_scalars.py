"""Scalars of numpy, which eager code meets where it computes with `np.log(n)` or `np.pi * 2`.

In: numpy's number types and ufuncs, where numpy is installed.  Out: scalars that the program keeps
somewhere are constants; a ufunc of constants is computed while tracing.  Arrays are left to the
interpreter, as are scalars that a call brings along: those are new objects at each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import pure
from jitshape.frontend.sources import Local, Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.classes import PURE_GETTER_OWNERS
from jitshape.frontend.values.constants import (
    CONSTANT_TYPES,
    fold,
    register_constant_type,
    wrap_constant,
)
from jitshape.frontend.values.functions import PURE_OWNERS, CallableValue
from jitshape.frontend.values.storage import PinnedValue, guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

_NAMES = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

try:
    import numpy
except ImportError:
    SCALARS: tuple[type, ...] = ()
else:
    SCALARS = tuple(getattr(numpy, name) for name in _NAMES)
    wraps(numpy.ufunc)(lambda m, real, source: Ufunc(real, guard_identity(m, real, source)))


class Ufunc(PinnedValue, CallableValue):
    """`numpy.log` and its like."""

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [m.specialised(a) for a in args]
        if kwargs or not all(_is_number(a) for a in given):
            raise Break("builtin", f"numpy.{self.object.__name__} of an array or a tensor")
        return fold(m, self.object, *(a.constant() for a in given))


def _is_number(value: Value) -> bool:
    return value.is_constant() and type(value.constant()) in CONSTANT_TYPES


def _wrap_scalar(m: Machine, real: Any, source: Source | None) -> Value:
    unknown = m.wrapper_of_base(type(real))
    if isinstance(source, Local) and unknown is not None:
        return unknown(m, real, source)
    return wrap_constant(m, real, source)


pure(*SCALARS)
for _cls in SCALARS:
    register_constant_type(_cls)
wraps(*SCALARS)(_wrap_scalar)
PURE_OWNERS.update(SCALARS)
PURE_GETTER_OWNERS.update(SCALARS)
