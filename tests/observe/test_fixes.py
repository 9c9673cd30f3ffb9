"""The fix that is named, when it is applied, saves the compiles that it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import jitshape
from jitshape.observe.fixes import Fix, fixes_of
from jitshape.observe.records import CompileRecord, GuardFailure
from jitshape.observe.story import stories


@dataclass
class Case:
    """`calls()` makes the arguments of each call.  `change` is part of the fix expected; the
    other fields apply it: other arguments, another function, options, sources, or marks."""

    fn: Callable
    calls: Callable[[], list[tuple]]
    change: str
    saves: int
    options: dict[str, Any] = field(default_factory=dict)
    fixed_calls: Callable[[], list[tuple]] | None = None
    fixed_fn: Callable | None = None
    fixed_options: dict[str, Any] | None = None
    sources: str = ""
    mark: tuple = ()
    context: Callable[[int], Any] = lambda number: torch.enable_grad()
    fixed_context: Callable[[int], Any] | None = None


def run(fn, calls, options, context=lambda number: torch.enable_grad()) -> tuple[int, list[Fix]]:
    """The compiles of a program, and the fixes named for it."""
    jitshape.reset()
    compiled = jitshape.compile(fn, name="f", **options)
    for number, args in enumerate(calls):
        with context(number):
            compiled(*args)
    assert jitshape.stats()["fallbacks"] == 0
    (story,) = stories(jitshape.history())
    assert story.compiles == jitshape.stats()["compiles"]
    return story.compiles, list(story.fixes)


def randoms(*shapes, **options):
    return lambda: [tuple(torch.randn(s, **options) for s in row) for row in shapes]


class Holder:
    def __init__(self, width):
        self.width = width


def scaled(x, holder):
    return x * holder.width


def total(x):
    result = 0
    for i in range(x.shape[0]):
        result = result + x[i]
    return result


def side(x):
    return x * 2 if x.shape[0] <= 8 else x * 3


def listed(xs):
    return sum(x * 2 for x in xs)


def grows(d, x):
    return {k: v * x for k, v in d.items()}


def write(x, y):
    x.add_(1)
    return y * 2


def overlapping():
    base = torch.ones(6)
    return [(torch.ones(4), torch.ones(4)), (base[:4], base[2:])]


ones = torch.ones
CASES = {
    "a size": Case(
        lambda x: torch.relu(x),
        randoms([(2, 4)], [(2, 6)], [(2, 9)]),
        "jitshape.mark_dynamic(x, (0, 1)) before the first call",
        1,
        mark=(0, (0, 1)),
    ),
    "the batch behind the length": Case(
        lambda x: x * 2,
        randoms([(4, 3)], [(4, 5)], [(8, 5)]),
        "jitshape.mark_dynamic(x, (0, 1))",
        1,
        mark=(0, (0, 1)),
    ),
    "one size after the other": Case(
        lambda x: x * 2,
        randoms([(4, 3, 2, 2)], [(5, 3, 2, 2)], [(5, 4, 2, 2)]),
        "jitshape.mark_dynamic(x, (0, 1))",
        2,
        mark=(0, (0, 1)),
    ),
    "a tensor in a list": Case(
        lambda xs: xs[0] * 2,
        lambda: [([ones(n)],) for n in (3, 4)],
        "jitshape.mark_dynamic(xs[0], 0)",
        1,
        fixed_options={"dynamic_shapes": {"xs": [{0: "dynamic"}]}},
    ),
    "two tensors": Case(
        lambda x, y: x + y,
        randoms([(3,), (3,)], [(4,), (4,)]),
        "@jitshape.compile(dynamic=True)",
        1,
        fixed_options={"dynamic": True},
    ),
    "a float, and later a size": Case(
        lambda x, scale: x * scale,
        lambda: [(ones(3), 0.5), (ones(3), 1.5), (ones(4), 2.5)],
        "@jitshape.compile(dynamic=True)",
        2,
        fixed_options={"dynamic": True},
    ),
    "an attribute": Case(
        scaled,
        lambda: [(ones(3), Holder(n)) for n in (2, 3, 4)],
        "JITSHAPE_DYNAMIC_SOURCES='holder.width'",
        1,
        sources="holder.width",
    ),
    "a stride": Case(
        lambda x: x + 1,
        lambda: [(ones(4, 16)[:, ::k][:, :2],) for k in (2, 4, 8)],
        "JITSHAPE_DYNAMIC_SOURCES='x.stride(1)'",
        1,
        sources="x.stride(1)",
    ),
    "dynamic=False": Case(
        lambda x: x * 2,
        randoms([(3,)], [(4,)], [(5,)], [(6,)]),
        "dynamic=True in place of dynamic=False",
        3,
        options={"dynamic": False},
        fixed_options={"dynamic": True},
    ),
    "a loop over a size": Case(
        total,
        randoms([(2,)], [(3,)], [(4,)], [(5,)]),
        "do without the number x.size(0) in `for i in range(x.shape[0]):`",
        2,
        fixed_fn=lambda x: x.sum(0),
    ),
    "a loop over a size that is symbolic from the start": Case(
        total,
        randoms([(2,)], [(3,)], [(4,)]),
        "do without the number x.size(0) in `for i in range(x.shape[0]):`",
        2,
        options={"dynamic": True},
        fixed_fn=lambda x: x.sum(0),
    ),
    "a branch on a size": Case(
        side,
        randoms([(2,)], [(3,)], [(9,)], [(4,)]),
        "let `return x * 2 if x.shape[0] <= 8 else x * 3` do the same whether or not",
        1,
        fixed_fn=lambda x: x * 2,
    ),
    "broadcasting": Case(
        lambda x, y: x + y,
        randoms([(3,), (3,)], [(4,), (4,)], [(5,), (1,)]),
        "expand the operands of `lambda x, y: x + y,` to one size before the call",
        1,
        fixed_calls=randoms([(3,), (3,)], [(4,), (4,)], [(5,), (5,)]),
    ),
    "a size that one call makes special": Case(
        lambda x, y: x * 2 if x.shape[0] != 1 else x + 2,
        lambda: [(torch.randn(k), None) for k in (3, 4, 1)],
        "avoid calls where x.size(0) == 1, which `lambda x, y: x * 2",
        1,
        fixed_calls=lambda: [(torch.randn(k), None) for k in (3, 4, 2)],
    ),
    "a dtype": Case(
        lambda x: x * 2,
        lambda: [(ones(3),), (ones(3, dtype=torch.float64),)],
        "pass x with the same dtype each time, by x.to(...)",
        1,
        fixed_calls=randoms([(3,)], [(3,)]),
    ),
    "requires_grad": Case(
        lambda x: x * 2,
        lambda: [(ones(3),), (ones(3, requires_grad=True),)],
        "pass x with the same requires_grad each time, by x.detach()",
        1,
        fixed_calls=randoms([(3,)], [(3,)]),
    ),
    "a number of dimensions": Case(
        lambda x: x * 2,
        randoms([(3,)], [(1, 3)], [(1, 1, 3)]),
        "pass x with the same number of dimensions each time, by unsqueeze or flatten",
        2,
        fixed_calls=randoms([(1, 1, 3)], [(1, 1, 3)], [(1, 1, 3)]),
    ),
    "a length": Case(
        listed,
        lambda: [([ones(2)] * n,) for n in (1, 2, 3)],
        "pass xs with the same length each time, or stack it into one tensor",
        2,
        fixed_calls=lambda: [([ones(2)] * 3,)] * 3,
    ),
    "keys": Case(
        grows,
        lambda: [({"a": ones(2)}, ones(2)), ({"a": ones(2), "b": ones(2)}, ones(2))],
        "keep the keys and attributes of d the same",
        1,
        fixed_calls=lambda: [({"a": ones(2), "b": ones(2)}, ones(2))] * 2,
    ),
    "an object": Case(
        lambda x, op: op(x),
        lambda: [(ones(2), torch.sin), (ones(2), torch.cos)],
        "pass the same object as op each time",
        1,
        fixed_calls=lambda: [(ones(2), torch.sin)] * 2,
    ),
    "a text": Case(
        lambda x, mode: x + len(mode),
        lambda: [(ones(2), "ab"), (ones(2), "cde")],
        "keep mode the same, or give each of its values a function of its own",
        1,
        fixed_calls=lambda: [(ones(2), "ab")] * 2,
    ),
    "a type": Case(
        lambda x, n: x * n,
        lambda: [(ones(2), 2), (ones(2), 3), (ones(2), 0.5)],
        "pass n with the same type each time",
        1,
        fixed_calls=lambda: [(ones(2), 2.0), (ones(2), 3.0), (ones(2), 0.5)],
    ),
    "the grad mode": Case(
        lambda x: x * 2,
        randoms([(3,)], [(3,)], [(3,)], requires_grad=True),
        "call it in the same state of torch each time: grad_mode is True",
        1,
        context=lambda number: torch.set_grad_enabled(number != 1),
        fixed_context=lambda number: torch.set_grad_enabled(True),
    ),
    "shared memory": Case(
        write,
        overlapping,
        "pass tensors that share memory always, or never",
        1,
        fixed_calls=lambda: [overlapping()[0]] * 2,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_fix_saves_what_it_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles, fixes = run(case.fn, case.calls(), case.options, case.context)
    named = [fix for fix in fixes if case.change in fix.change]
    assert [fix.saves for fix in named] == [case.saves], fixes
    calls = (case.fixed_calls or case.calls)()
    if case.mark:
        place, dims = case.mark
        jitshape.mark_dynamic(calls[0][place], dims)
    if case.sources:
        monkeypatch.setenv("JITSHAPE_DYNAMIC_SOURCES", case.sources)
    options = case.options if case.fixed_options is None else case.fixed_options
    context = case.fixed_context or case.context
    after, left = run(case.fixed_fn or case.fn, calls, options, context)
    assert compiles - after == case.saves
    assert not any(case.change in fix.change for fix in left)


def test_no_fix_where_the_line_needs_every_value() -> None:
    """The second value made the size symbolic and was needed by itself: a mark would raise."""
    compiles, fixes = run(total, randoms([(2,)], [(3,)])(), {})
    assert compiles == 2 and fixes == []


def test_one_change_for_all_that_a_miss_failed() -> None:
    calls = [(torch.ones(3), 2), (torch.ones(3, dtype=torch.float64), 3)]
    compiles, fixes = run(lambda x, n: x * n, calls, {})
    (fix,) = fixes
    assert compiles == 2 and fix.saves == 1 and "same dtype" in fix.change


def test_pieces_behind_a_break_are_made_symbolic_by_the_decorator() -> None:
    @jitshape.disable
    def outside():
        pass

    def f(x):
        y = x * 2
        outside()
        return y + 1

    found = {}
    for options in ({}, {"dynamic": True}):
        jitshape.reset()
        compiled = jitshape.compile(f, **options)
        for n in (3, 4, 5):
            compiled(torch.ones(n))
        found[bool(options)] = stories(jitshape.history())
    main, piece = found[False]
    (fix,) = piece.fixes
    assert (fix.change, fix.saves) == ("@jitshape.compile(dynamic=True)", 1)
    assert piece.compiles - found[True][1].compiles == 1 and main.fixes[0].kind == "mark"


BRANCHING: dict[str, Callable] = {
    "two ways": lambda x, n: x * n if n <= 3 else x / n,
    "three ways": lambda x, n: x * n if n <= 2 else x / n if n <= 5 else x - n,
    "two branches": lambda x, n: (x * n if n % 2 == 0 else x) + (1 if n > 4 else 2),
    "none": lambda x, n: x * n,
}


@pytest.mark.parametrize("values", [(2, 5), (2, 3), (2, 5, 3, 6), (5, 6, 2), (2, 3, 4, 7, 8)])
@pytest.mark.parametrize("name", BRANCHING)
def test_what_is_saved_where_branches_remain(name: str, values: tuple[int, ...]) -> None:
    """A call that takes other branches than those before it is compiled all the same."""
    calls = [(ones(2), n) for n in values]
    compiles, fixes = run(BRANCHING[name], calls, {})
    after, _ = run(BRANCHING[name], calls, {"dynamic": True})
    assert compiles - after == sum(fix.saves for fix in fixes if fix.kind == "decorator")


def test_a_float_that_a_line_needs() -> None:
    """No decorator helps: the line is named."""

    def f(x: torch.Tensor, name: float) -> dict:
        return {name: x + 1}

    compiles, fixes = run(f, [(torch.rand(3), key) for key in (0.5, 0.75, 0.25)], {})
    (fix,) = fixes
    assert (compiles, fix.kind, fix.saves) == (3, "line", 1)
    assert fix.change == "do without the number name in `return {name: x + 1}`"


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: torch.nn.functional.linear(x, torch.ones(4, 8)),
        lambda x: x @ torch.ones(8, 4),
        lambda x: torch.nn.functional.layer_norm(x, (8,), torch.ones(8)),
    ],
)
def test_no_mark_for_a_size_that_a_weight_fixes(layer: Callable) -> None:
    rows = randoms(*([(n, 8)] for n in (3, 5, 7)))()
    _, fixes = run(lambda x: layer(x), rows, {})
    (fix,) = fixes
    assert fix.saves == 1 and fix.change.startswith("jitshape.mark_dynamic(x, 0)")
    marked = randoms(*([(n, 8)] for n in (3, 5, 7)))()
    jitshape.mark_dynamic(marked[0][0], 0)
    assert run(lambda x: layer(x), marked, {})[0] == 1


def test_where_relations_alone_tell_calls_apart_nothing_is_advised():
    failure = GuardFailure("n", "n > 3", "2", kind="relation")
    again = CompileRecord("f", "f.py:1", "recompile", 2, failures=(failure,), alike=(1,))
    assert fixes_of([CompileRecord("f", "f.py:1", "compile"), again]) == []
