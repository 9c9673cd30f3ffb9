"""Iterators of `builtins` and `itertools`, and `functools.reduce`, `partial`."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import NONE, breaks, is_callable, is_none, models
from jitshape.frontend.values.base import Value, unpack
from jitshape.frontend.values.constants import ConstantValue
from jitshape.frontend.values.functions import PartialValue
from jitshape.frontend.values.iterators import (
    AccumulateIterator,
    ChainIterator,
    CountIterator,
    CycleIterator,
    EnumerateIterator,
    FilterIterator,
    GetitemIterator,
    IsliceIterator,
    ListIterator,
    MapIterator,
    PureIterator,
    RepeatIterator,
    SequenceIterator,
    StarmapIterator,
    WhileIterator,
    ZipIterator,
)
from jitshape.frontend.values.sequences import ListValue, TupleValue
from jitshape.frontend.values.slices import RangeValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(enumerate)
def new_enumerate(m: Machine, iterable: Value, start: Value | None = None) -> Value:
    return EnumerateIterator(iterable.iterate(m), start or ConstantValue(0))


@models(zip)
def new_zip(m: Machine, /, *iterables: Value, strict: Value | None = None) -> Value:
    iterators = []
    for index, iterable in enumerate(iterables, 1):
        if not m.defines(iterable, "__iter__") and not m.defines(iterable, "__getitem__"):
            m.throw(TypeError, f"zip argument #{index} must support iteration")
        iterators.append(iterable.iterate(m))
    return ZipIterator(iterators, strict is not None and strict.truth(m))


@models(map)
def new_map(m: Machine, function: Value, first: Value, /, *rest: Value) -> Value:
    return MapIterator(function, [x.iterate(m) for x in (first, *rest)])


@models(filter)
def new_filter(m: Machine, function: Value, iterable: Value, /) -> Value:
    return FilterIterator(function, iterable.iterate(m))


@models(reversed)
def new_reversed(m: Machine, sequence: Value, /) -> Value:
    if isinstance(sequence, ListValue) and sequence.inherits("__reversed__"):
        return ListIterator(sequence, -1)
    if isinstance(sequence, RangeValue):
        return PureIterator(reversed(sequence.concrete(m)))
    method = sequence.special(m, "__reversed__")
    if method is not None:
        return m.call(method, [], {})
    if isinstance(sequence, TupleValue):
        return SequenceIterator(reversed(sequence.items), reversed)
    if not m.defines(sequence, "__getitem__"):
        m.throw(TypeError, f"'{sequence.python_type().__name__}' object is not reversible")
    return GetitemIterator(sequence, -1, m.as_int(sequence.length(m)) - 1)


def _own_iterators() -> list[Any]:
    """`__iter__` of the iterators of C: each is its own."""
    made = (iter([]), iter(()), iter({}), iter({1}), iter(""), iter(b""), iter(range(0)))
    made += (iter({}.values()), iter({}.items()), (x for x in ()), iter(int, 1), reversed([]))
    kinds = [type(x) for x in made] + [enumerate, zip, map, filter, reversed]
    kinds += [k for k in vars(itertools).values() if isinstance(k, type)]
    return [vars(kind)["__iter__"] for kind in kinds if "__iter__" in vars(kind)]


@models(*_own_iterators())
def iterator_iter(m: Machine, self: Value, /) -> Value:
    return self


# ---- itertools


@models(itertools.chain)
def new_chain(m: Machine, /, *iterables: Value) -> Value:
    return ChainIterator(TupleValue(iterables).iterate(m))


@models(itertools.chain.from_iterable)
def chain_from(m: Machine, iterable: Value, /) -> Value:
    return ChainIterator(iterable.iterate(m))


@models(itertools.islice)
def new_islice(m: Machine, iterable: Value, /, *bounds: Value) -> Value:
    real = slice(*(None if is_none(b) else m.as_int(b) for b in bounds))
    return IsliceIterator(iterable.iterate(m), real)


@models(itertools.repeat)
def new_repeat(m: Machine, object: Value, times: Value | None = None) -> Value:
    return RepeatIterator(object, None if times is None else m.as_int(times))


@models(itertools.count)
def new_count(m: Machine, start: Value | None = None, step: Value | None = None) -> Value:
    return CountIterator(start or ConstantValue(0), step or ConstantValue(1))


@models(itertools.cycle)
def new_cycle(m: Machine, iterable: Value, /) -> Value:
    return CycleIterator(iterable.iterate(m))


@models(itertools.accumulate)
def new_accumulate(
    m: Machine, iterable: Value, func: Value | None = None, *, initial: Value | None = None
) -> Value:
    start = None if is_none(initial) else initial
    return AccumulateIterator(iterable.iterate(m), None if is_none(func) else func, start)


@models(itertools.starmap)
def new_starmap(m: Machine, function: Value, iterable: Value, /) -> Value:
    return StarmapIterator(function, [iterable.iterate(m)])


@models(itertools.filterfalse)
def new_filterfalse(m: Machine, function: Value, iterable: Value, /) -> Value:
    return FilterIterator(function, iterable.iterate(m), wanted=False)


@models(itertools.takewhile)
def new_takewhile(m: Machine, function: Value, iterable: Value, /) -> Value:
    return WhileIterator(itertools.takewhile, function, iterable.iterate(m))


@models(itertools.dropwhile)
def new_dropwhile(m: Machine, function: Value, iterable: Value, /) -> Value:
    return WhileIterator(itertools.dropwhile, function, iterable.iterate(m))


def _precomputed(real: Any, combine: Any) -> None:
    """Iterators that read their pools at once: over tuples of values, made by the real one."""

    @models(real)
    def make(m: Machine, /, *args: Value, **kwargs: Value) -> Value:
        rows = combine(m, args, {k: m.as_int(v) for k, v in kwargs.items()})
        return SequenceIterator([TupleValue(row) for row in rows], real)


def _pool_and_length(real: Any) -> Any:
    def combine(m: Machine, args: tuple, named: dict) -> Any:
        lengths = [m.as_int(v) for v in args[1:] if not is_none(v)]
        return real(unpack(m, args[0]), *lengths, **named)

    return combine


def _pools(m: Machine, args: tuple, named: dict) -> Any:
    return itertools.product(*(unpack(m, a) for a in args), **named)


_precomputed(itertools.product, _pools)
for _real in (
    itertools.permutations,
    itertools.combinations,
    itertools.combinations_with_replacement,
    itertools.pairwise,
):
    _precomputed(_real, _pool_and_length(_real))


@models(itertools.zip_longest)
def new_zip_longest(m: Machine, /, *iterables: Value, fillvalue: Value = NONE) -> Value:
    pools = [unpack(m, x) for x in iterables]
    rows = itertools.zip_longest(*pools, fillvalue=fillvalue)
    return SequenceIterator([TupleValue(row) for row in rows], itertools.zip_longest)


breaks("builtin", "use a loop", itertools.groupby, itertools.tee, itertools.compress)

# ---- functools


@models(functools.reduce)
def reduce(m: Machine, function: Value, iterable: Value, initial: Value | None = None, /) -> Value:
    iterator = iterable.iterate(m)
    total = initial if initial is not None else iterator.next(m)
    if total is None:
        m.throw(TypeError, "reduce() of empty iterable with no initial value")
    while (item := iterator.next(m)) is not None:
        total = m.call(function, [total, item], {})
    return total


@models(functools.partial)
def new_partial(m: Machine, function: Value, /, *args: Value, **kwargs: Value) -> Value:
    if not is_callable(function):
        m.throw(TypeError, "the first argument must be callable")
    if isinstance(function, PartialValue):
        args, kwargs = (*function.args, *args), {**function.kwargs, **kwargs}
        function = function.function
    return PartialValue(function, list(args), kwargs, None)
