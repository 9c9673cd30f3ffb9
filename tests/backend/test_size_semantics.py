"""Integer arithmetic means the same in Python, in guards in C, and in kernels of both languages."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jitshape.backend.compile import compile_graph
from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend.guards import GuardSet, assemble
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.symint import Size
from tests.backend.graphs import build, call, new_env
from tests.ir.expressions import CONCRETE, NAMES, SYMBOLIC, trees, value_of
from tests.ir.expressions import build as from_tree

EXAMPLES = int(os.environ.get("SIZE_EXAMPLES", "6"))
TARGETS = ["cpu"]
try:
    import triton  # noqa: F401

    TARGETS.append("triton")
except ImportError:
    pass


def expected(some, point: dict[str, int]) -> list[int] | None:
    """What Python computes; None where it divides by zero."""
    try:
        return [from_tree(tree, point, CONCRETE) for tree in some]
    except ZeroDivisionError:
        return None


def guarded(expr: Size, symbols: dict[str, Size], point: dict[str, int], value: int) -> bool:
    """Whether the guard `expr == value` holds in C."""
    locals_ = [S.Local(place, name) for place, name in enumerate(NAMES)]
    numbers = tuple((n, S.Number(local, "int")) for n, local in zip(NAMES, locals_))
    found = GuardSet()
    found.add(numbers[0][1], C.Holds(BoolExpr("eq", (expr, value)), numbers))
    return assemble(found, ()).run(tuple(point[name] for name in NAMES)) is not None


@seed(0)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(trees, min_size=6, max_size=6),
    st.lists(st.tuples(*[st.integers(-6, 6)] * 3), min_size=8, max_size=8),
)
def test_four_languages_agree(some, points):
    env = new_env()
    symbols: dict[str, Size] = {n: env.int_symbol(3 + i, name=n) for i, n in enumerate(NAMES)}
    try:
        exprs = [from_tree(tree, symbols, SYMBOLIC) for tree in some]
    except ZeroDivisionError:
        return
    graph = build(
        env, [], lambda g: [call(g, "full.default", [1], e, dtype=torch.int64) for e in exprs]
    )
    graph.symbols = list(symbols.values())  # type: ignore[assignment]
    programs = [compile_graph(graph, backend=target) for target in TARGETS]
    for row in points:
        point = dict(zip(NAMES, row))
        values = expected(some, point)
        if values is None:
            continue
        assert [value_of(e, point) for e in exprs] == values
        for program in programs:
            assert [t.item() for t in program(*row)] == values
        for e, value in zip(exprs, values):
            if type(e) is not int:
                assert guarded(e, symbols, point, value)
                assert not guarded(e, symbols, point, value + 1)


@pytest.mark.parametrize("a", [-(2**63), -(2**40) - 1, -1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("b", [-(2**33), -7, 2, 2**62])
def test_quotients_at_the_limits_of_64_bits(a: int, b: int):
    env = new_env()
    x, y = env.int_symbol(7, name="x"), env.int_symbol(2, name="y")
    exprs = [x // y, x % y]
    graph = build(
        env, [], lambda g: [call(g, "full.default", [1], e, dtype=torch.int64) for e in exprs]
    )
    graph.symbols = [x, y]
    for target in TARGETS:
        assert [t.item() for t in compile_graph(graph, backend=target)(a, b)] == [a // b, a % b]
