"""Output sizes of an op whose rule nobody wrote down, as expressions of its arguments' sizes.

In: a function that runs the op at given sizes.  Out: for each output size the simplest expression
that fits every run.  Invariant: a size is either such an expression or made static by facts; where
runs cannot tell equal sizes apart, that they are equal becomes a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any

from jitshape.ir.symint import IntExpr, Size, sym_max, sym_min

Number = Callable[[Size], int]
_ENOUGH = 2  # runs that an expression must fit, beside the call itself
_DIVISORS = (2, 3, 4)


class Fit:
    """`candidates` are the symbolic sizes of the arguments.  Runs at sizes that are all different
    are made if `apart`: kernels of backward ops trust that sizes agree."""

    def __init__(self, env: Any, candidates: list[IntExpr], apart: bool) -> None:
        self.env, self.candidates, self.apart = env, candidates, apart
        self.numbers: list[Number] = []
        self.shapes: list[list[tuple[int, ...]]] = []
        self.told_apart = False

    def run(
        self, here: list[tuple[int, ...]], shapes: Callable[[Number], list[tuple[int, ...]]]
    ) -> None:
        """Run at other sizes; `here` are the shapes at this call."""
        if not self.candidates:
            return
        ranks = [len(shape) for shape in here]
        for number, distinct in self._assignments():
            try:
                found = shapes(number)
            except Exception:
                continue
            if [len(shape) for shape in found] != ranks:  # a squeeze: the sizes decide
                self._specialize()
                return
            self.numbers.append(number)
            self.shapes.append(found)
            self.told_apart |= distinct

    def _assignments(self) -> Iterator[tuple[Number, bool]]:
        """Multiples of this call's sizes, whose divisors and order stay; larger sizes, equal ones
        by equal amounts; then sizes that all differ, in the same and in the opposite order."""
        symbols = list(self.env.symbols.values())
        actual = {s.name: self.env.actual(s.expr) for s in symbols}
        actual = {name: 7 if value is None else value for name, value in actual.items()}
        for factor in (2, 3):
            yield self._number({n: factor * max(a, 1) for n, a in actual.items()}), False
        ranks = {a: rank for rank, a in enumerate(sorted(set(actual.values())))}
        yield self._number({n: a + 1 + 2 * ranks[a] for n, a in actual.items()}), False
        if self.apart:
            order = sorted(actual, key=actual.__getitem__)
            for names in (order, order[::-1]):
                yield self._number({n: 3 + 2 * place for place, n in enumerate(names)}), True

    def _number(self, values: dict[str, int]) -> Number:
        def number(size: Size) -> int:
            if type(size) is int:
                return size
            value = size.algebra.evaluate(self.env.simplify(size), values)  # type: ignore
            assert value is not None
            return value

        return number

    def size(self, size: int, place: int, dim: int) -> Size:
        """The expression of output dimension `dim` of result `place`, `size` at this call."""
        seen = [shapes[place][dim] for shapes in self.shapes]
        if not self.candidates or (len(seen) >= _ENOUGH and all(s == size for s in seen)):
            return size
        if len(seen) >= _ENOUGH:
            for expression in self._expressions(seen):
                if self._fits(expression, size, seen):
                    self._equate()
                    return expression
        if any(self.env.actual(c) is None for c in self.candidates):
            return self.env.unbacked()
        self._specialize()
        return size

    def _specialize(self) -> None:
        for candidate in self.candidates:
            if self.env.actual(candidate) is not None:
                self.env.specialize(candidate, "a size of a result")

    def _fits(self, expression: Size, size: int, seen: list[int]) -> bool:
        if self.env.actual(expression) not in (size, None):
            return False
        return all(number(expression) == s for number, s in zip(self.numbers, seen))

    def _equate(self) -> None:
        """Where no run had sizes apart, those that are equal now must stay equal."""
        if self.told_apart:
            return
        for a, b in combinations(self.candidates, 2):
            if self.env.actual(a) is not None and self.env.actual(a) == self.env.actual(b):
                self.env.equal(a, b, "sizes of one call")

    def _expressions(self, seen: list[int]) -> Iterator[Size]:
        """From the simplest: a size, it plus a number, times a number, divided; then of two."""
        one = self.numbers[0]
        yield from self.candidates
        for a in self.candidates:
            yield a + (seen[0] - one(a))
        for a in self.candidates:
            yield from self._lines(a, seen)
        for a in self.candidates:
            for divisor in _DIVISORS:
                for shift in range(divisor):
                    part = (a + shift) // divisor
                    yield part + (seen[0] - one(part))
        for a, b in permutations(self.candidates, 2):
            for pair in (a + b, a - b, a * b, sym_min(a, b), sym_max(a, b)):
                yield pair + (seen[0] - one(pair))

    def _lines(self, a: IntExpr, seen: list[int]) -> Iterator[Size]:
        """`k * a + m` through the first two runs."""
        x, y = self.numbers[0](a), self.numbers[1](a)
        if x != y and (seen[1] - seen[0]) % (y - x) == 0:
            factor = (seen[1] - seen[0]) // (y - x)
            yield a * factor + (seen[0] - factor * x)
