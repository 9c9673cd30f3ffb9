import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.backend.codegen.exprs import Access, access, emit, linear_in, symbol_ids
from jitshape.ir.symint import Algebra


class Evaluate:
    """`exprs.Target` of plain integers."""

    def __init__(self, values):
        self.values = values

    def integer(self, value):
        return value

    def symbol(self, atom):
        return self.values[atom.name]

    def add(self, a, b):
        return a + b

    def mul(self, a, b):
        return a * b

    def divide(self, kind, a, b, unsigned):
        assert not unsigned or (a >= 0 and b >= 0)
        return a // b if kind == "floordiv" else a % b

    def extreme(self, kind, a, b):
        return max(a, b) if kind == "max" else min(a, b)


@pytest.fixture
def symbols():
    algebra = Algebra()
    return [algebra.symbol(name) for name in ("n", "i", "j", "t")]


def test_access_along_an_axis(symbols):
    n, i, j, t = symbols
    axis, indirect = j.symbol.id, [t.symbol.id]
    assert access(n * i, axis) == Access("uniform", 0, n * i)
    assert access(n * i + j + 3, axis) == Access("unit", 1, n * i + 3)
    assert access(2 * j, axis) == Access("strided", 2, 0)
    assert access(n * j + i, axis) == Access("strided", n, i)
    assert access((i + j) // 2, axis) == Access("gather")
    assert access(j * j, axis) == Access("gather")
    assert access(t * n + j, axis, indirect) == Access("gather")
    assert access(t * n + j, axis) == Access("unit", 1, t * n)
    assert access(7, axis) == Access("uniform", 0, 7)


def test_symbols_inside_atoms_count(symbols):
    n, i, j, _ = symbols
    assert symbol_ids((i + j) // n) == {n.symbol.id, i.symbol.id, j.symbol.id}
    assert linear_in(i * (j % n), j.symbol.id) is None
    assert linear_in(j * (i % n) + i, j.symbol.id) == (i % n, i)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_emitted_code_has_the_value_of_the_expression(data):
    algebra = Algebra()
    names = ("a", "b", "c")
    leaf = st.sampled_from([*(algebra.symbol(name) for name in names), 1, 2, -3, 5])
    expr = data.draw(leaf)
    for _ in range(data.draw(st.integers(1, 6))):
        other, op = data.draw(leaf), data.draw(st.sampled_from("+*/%mM"))
        step = {
            "+": lambda x, y: x + y,
            "*": lambda x, y: x * y,
            "/": lambda x, y: x // algebra.add(algebra.max(y, 0), 1),
            "%": lambda x, y: x % algebra.add(algebra.max(y, 0), 1),
            "m": algebra.min,
            "M": algebra.max,
        }[op]
        expr = step(expr, other)
    values = {name: data.draw(st.integers(0, 50)) for name in names}
    assert emit(expr, Evaluate(values)) == algebra.evaluate(expr, values)
