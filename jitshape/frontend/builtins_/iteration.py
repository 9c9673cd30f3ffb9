"""Iterators of `builtins` and `itertools`, and `functools.reduce`, `partial`."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import NONE, is_callable, is_none, models
from jitshape.frontend.values.base import Break, Value, unpack
from jitshape.frontend.values.constants import ConstantValue
from jitshape.frontend.values.grouping import (
    CompressIterator,
    GroupbyIterator,
    PairwiseIterator,
    TeeIterator,
)
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
from jitshape.frontend.values.partials import PartialValue
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
    if not 1 <= len(bounds) <= 3:
        raise Break("builtin_arguments", f"islice with {len(bounds)} bounds")
    real = [None if is_none(b) else m.as_int(b) for b in bounds]
    _accepted(m, itertools.islice, (), *real)
    return IsliceIterator(iterable.iterate(m), slice(*real))


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


def _accepted(m: Machine, real: Any, *args: Any) -> Any:
    """What the real function gives for these; its complaints are the program's."""
    try:
        return real(*args)
    except (ValueError, OverflowError) as error:
        m.throw(type(error), *error.args)


def _rows(m: Machine, real: Any, *args: Any) -> Value:
    """An iterator that reads its pools at once: over tuples of values, made by the real one."""
    return SequenceIterator([TupleValue(row) for row in _accepted(m, real, *args)], real)


@models(itertools.product)
def new_product(m: Machine, /, *iterables: Value, repeat: Value | None = None) -> Value:
    pools = [unpack(m, x) for x in iterables] * (1 if repeat is None else m.as_int(repeat))
    return _rows(m, itertools.product, *pools)


@models(itertools.permutations)
def new_permutations(m: Machine, iterable: Value, r: Value | None = None) -> Value:
    pool = unpack(m, iterable)
    return _rows(m, itertools.permutations, pool, len(pool) if is_none(r) else m.as_int(r))


@models(itertools.combinations)
def new_combinations(m: Machine, iterable: Value, r: Value) -> Value:
    return _rows(m, itertools.combinations, unpack(m, iterable), m.as_int(r))


@models(itertools.combinations_with_replacement)
def new_combinations_with_replacement(m: Machine, iterable: Value, r: Value) -> Value:
    real = itertools.combinations_with_replacement
    return _rows(m, real, unpack(m, iterable), m.as_int(r))


@models(itertools.pairwise)
def new_pairwise(m: Machine, iterable: Value, /) -> Value:
    return PairwiseIterator(iterable.iterate(m))


@models(itertools.zip_longest)
def new_zip_longest(m: Machine, /, *iterables: Value, fillvalue: Value = NONE) -> Value:
    pools = [unpack(m, x) for x in iterables]
    rows = itertools.zip_longest(*pools, fillvalue=fillvalue)
    return SequenceIterator([TupleValue(row) for row in rows], itertools.zip_longest)


@models(itertools.groupby)
def new_groupby(m: Machine, iterable: Value, key: Value | None = None) -> Value:
    return GroupbyIterator(iterable.iterate(m), None if is_none(key) else key)


@models(itertools.tee)
def tee(m: Machine, iterable: Value, n: Value | None = None, /) -> Value:
    count = 2 if n is None else m.as_int(n)
    _accepted(m, itertools.tee, (), count)
    if not count:
        return TupleValue()
    iterator = iterable.iterate(m)
    if isinstance(iterator, TeeIterator):  # the family grows
        return TupleValue([iterator, *(iterator.copy() for _ in range(count - 1))])
    family: list[TeeIterator] = []
    return TupleValue([TeeIterator(iterator, family, deque()) for _ in range(count)])


@models(itertools.compress)
def new_compress(m: Machine, data: Value, selectors: Value) -> Value:
    return CompressIterator(data.iterate(m), selectors.iterate(m))


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
    return PartialValue(function, list(args), kwargs)
