"""Elementary functions as LLVM IR.

In: `Value`s of float or double, uniform or vector.  Out: the same type, within 4 ulp, right at
infinities, nan and the ends of the range.
f32 functions are inline polynomials where one is worth it (coefficients: Remez, relative error,
on the interval named); f64 and the rare ones call libm lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

from jitshape.backend.codegen.llvm_text import Value, Variable

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh sigmoid erf erfc"
).split()


def by_lane(function: Callable[..., Value], *args: Value) -> Value:
    """`function` of uniform values, for each lane in turn."""
    args = args[0].f.level_lanes(*args)
    f, lanes, kind = args[0].f, args[0].lanes, args[0].kind
    if not lanes:
        return function(*args)
    slots = [Variable(f, kind, lanes, "lanes") for _ in args]
    for slot, arg in zip(slots, args):
        slot.set(arg)
    with f.loop(f.constant("i64", 0), f.constant("i64", lanes), 1, "lane") as lane:
        pointers = [f.element(slot.pointer, kind, lane) for slot in slots]
        result = function(*(f.load(p, kind) for p in pointers))
        f.line(f"store {result}, ptr {pointers[0]}")
    return slots[0].get()


def libm(name: str, *args: Value) -> Value:
    """The C library's function."""

    def one(*lane: Value) -> Value:
        kind = lane[0].kind
        return lane[0].f.call(name, kind, 0, name + ("f" if kind == "float" else ""), lane)

    return by_lane(one, *args)


def _library(name: str) -> Callable[..., Value]:
    return lambda *args: libm(name, *args)


def sigmoid(x: Value) -> Value:
    return 1.0 / (FUNCTIONS["exp"](-x) + 1.0)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _library(name) for name in [*UNARY, "pow", "atan2"]},
    "sigmoid": sigmoid,
}
