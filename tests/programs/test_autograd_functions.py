"""torch.autograd.Function of the user's and custom ops with formulas: traced, guarded, or left to
eager where somebody would notice when the formula runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jitshape
from tests.programs.compare import assert_same, check

SCALE = 2.0
FACTORS = torch.arange(4.0)
noted: list[int] = []


class Settings:
    scale = 3.0


def function(
    forward: Callable[..., Any], backward: Callable[..., Any], setup: Callable | None = None
) -> type:
    """A Function made of these."""
    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if setup is not None:
        parts["setup_context"] = staticmethod(setup)
    return type("Made", (Function,), parts)


def saves(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
    ctx.save_for_backward(*tensors)
    return tensors[0]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def doubled(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def in_place(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    ctx.mark_dirty(x)
    return x.mul_(2)


def above(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = x > 0
    ctx.mark_non_differentiable(places)
    return x * 2, places


def by_need(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, y = ctx.saved_tensors
    first, second = ctx.needs_input_grad
    return g * y if first else None, g * x * 3 if second else None


def keep_rows(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
    ctx.rows, ctx.factor = x.shape[0], factor
    return x * ctx.rows * factor


def from_context(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
    return g * ctx.rows * ctx.factor, None


def with_result(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    ctx.save_for_backward(y)
    ctx.sine = x.sin()
    return y


def unmaterialized(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ctx.set_materialize_grads(False)
    return x * 2, x * 3


PROGRAMS: dict[str, tuple[Any, tuple]] = {
    "straight through": (function(lambda ctx, x: x.round(), lambda ctx, g: g), (leaf(4),)),
    "writes its argument": (function(in_place, lambda ctx, g: g * 2), (leaf(4) * 1,)),
    "returns its argument": (function(lambda ctx, x: x, lambda ctx, g: g * 5), (leaf(4),)),
    "setup_context": (
        function(
            lambda x: x.exp(),
            lambda ctx, g: g * ctx.saved_tensors[0],
            lambda ctx, inputs, output: ctx.save_for_backward(output),
        ),
        (leaf(4),),
    ),
    "saves its result": (
        function(with_result, lambda ctx, g: g * ctx.saved_tensors[0] * ctx.sine),
        (leaf(4),),
    ),
    "attributes and sizes": (function(keep_rows, from_context), (leaf(4, 3), 2.5)),
    "one needs no gradient": (
        function(lambda ctx, x, y: saves(ctx, x, y) * y, by_need),
        (leaf(4), torch.randn(4)),
    ),
    "both need gradients": (
        function(lambda ctx, x, y: saves(ctx, x, y) * y, by_need),
        (leaf(4), leaf(4)),
    ),
    "a result without gradient": (function(above, lambda ctx, g, h: g * 2), (leaf(4),)),
    "a gradient that is summed": (
        function(lambda ctx, x, y: x * 2 + y, lambda ctx, g: (g, g)),
        (leaf(3, 4), leaf(4)),
    ),
    "results that are no tensors": (
        function(lambda ctx, x: (x * 2, 5, None), lambda ctx, g, *rest: g),
        (leaf(4),),
    ),
    "once differentiable": (
        function(doubled, once_differentiable(lambda ctx, g: g * 3)),
        (leaf(4),),
    ),
    "without grad": (function(doubled, lambda ctx, g: g), (torch.randn(4),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_in_the_graph(name: str) -> None:
    made, args = PROGRAMS[name]

    def f(*args: Any) -> Any:
        return made.apply(*args)

    longer = [torch.cat([a, a]).detach() if isinstance(a, torch.Tensor) else a for a in args]
    longer = [
        a.requires_grad_(b.requires_grad) if isinstance(a, torch.Tensor) else a
        for a, b in zip(longer, args)
    ]
    if name == "writes its argument":
        check(lambda x: made.apply(x * 1), (leaf(4),), (leaf(8),), compiles=2)
    else:
        second = [] if name == "a gradient that is summed" else [tuple(longer)]
        check(f, args, *second, compiles=2)


def reads_global(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * SCALE


def reads_tensor(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * FACTORS


def reads_class(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * Settings.scale


def by_scale(g: torch.Tensor) -> torch.Tensor:
    return g * SCALE


def keep_second(ctx: Any, x: torch.Tensor, second: Any) -> torch.Tensor:
    ctx.second = second
    return x * 2


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


def closure() -> tuple[type, list[float]]:
    cell = [2.0]
    return function(doubled, lambda ctx, g: g * cell[0]), cell


Enclosed, enclosed = closure()
Replaced = function(doubled, lambda ctx, g: g)
InForward = function(lambda ctx, x: x * SCALE, lambda ctx, g: g)
InBackward = function(doubled, reads_global)
CallsHelper = function(doubled, lambda ctx, g: by_scale(g))
KeepsNumber = function(keep_second, lambda ctx, g: (g * ctx.second, None))
KeepsObject = function(keep_second, lambda ctx, g: (g * ctx.second.scale, None))
KeepsList = function(keep_second, lambda ctx, g: (g * ctx.second[0], None))
kept_settings, kept_list = Settings(), [2.0]
OfTensor, OfClass = function(doubled, reads_tensor), function(doubled, reads_class)


@torch.library.custom_op("jitshape_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, times: float = 2.0) -> torch.Tensor:
    return x * times


@scaled.register_fake
def _(x: torch.Tensor, times: float = 2.0) -> torch.Tensor:
    return torch.empty_like(x)


def keep_times(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    ctx.times = inputs[1] * Settings.scale


scaled.register_autograd(lambda ctx, g: (g * 3 * ctx.times, None), setup_context=keep_times)


@torch.library.custom_op("jitshape_tests::scaled_by_global", mutates_args=())
def scaled_by_global(x: torch.Tensor) -> torch.Tensor:
    return x * 2


scaled_by_global.register_fake(torch.empty_like)
scaled_by_global.register_autograd(lambda ctx, g: g * SCALE)


@torch.library.custom_op("jitshape_tests::mixed", mutates_args=())
def mixed(
    xs: list[torch.Tensor], y: torch.Tensor, times: float = 2.0, *, plus: float = 1.0
) -> list[torch.Tensor]:
    return [sum(xs) * y, *(x * times + plus for x in xs)]


@mixed.register_fake
def _(xs: Any, y: Any, times: float = 2.0, *, plus: float = 1.0) -> Any:
    return [torch.empty_like(x) for x in (y, *xs)]


def keep_mixed(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    xs, y, ctx.times = inputs
    assert type(xs) is type(output) is list and keyword_only_inputs["plus"] > 0
    ctx.save_for_backward(*xs, y)


def mixed_gradients(ctx: Any, tangents: list[torch.Tensor]) -> Any:
    g, *gs = tangents
    *xs, y = ctx.saved_tensors
    needs, of_y, *rest = ctx.needs_input_grad
    given = [g * y + h * ctx.times if need else None for need, h in zip(needs, gs)]
    return given, g * sum(xs) if of_y else None, *[None for _ in rest]


mixed.register_autograd(mixed_gradients, setup_context=keep_mixed)
OPS = torch.ops.jitshape_tests

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "by name": lambda x, y: OPS.scaled(x=x * y, times=3.0),
    "a default": lambda x, y: OPS.scaled(x * y, 2.0),
    "a list": lambda x, y: mixed([x, x * 2], y),
    "a tuple": lambda x, y: OPS.mixed((x,), y, 3.0),
    "by name only": lambda x, y: mixed([x, y], y=y * 2, plus=4.0),
    "some without grad": lambda x, y: mixed([x, y.detach()], y.detach(), times=0.5),
}


@pytest.mark.parametrize("how", CALLS)
def test_arguments_of_ops(how: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = CALLS[how](x, y)
        rows = found if isinstance(found, list) else [found]
        return sum((row * (n + 2)).sum() for n, row in enumerate(rows))

    jitshape.reset()
    compiled = jitshape.compile(f, fullgraph=True)
    for size in (3, 4, 6):
        found = []
        for call in (f, compiled):
            x, y = (torch.arange(1.0, size + 1).requires_grad_() for _ in range(2))
            result = call(x, y)
            result.backward()
            found.append([result, x.grad, y.grad])
        torch.testing.assert_close(*found)
    assert jitshape.stats()["compiles"] == 2


Change = tuple[Callable, Callable[[], None], Callable[[], None]]

IN_FORWARD: dict[str, Change] = {
    "a global": (
        lambda x: InForward.apply(x),
        lambda: set_global("SCALE", 7.0),
        lambda: set_global("SCALE", 2.0),
    ),
    "the formula": (
        lambda x: Replaced.apply(x),
        lambda: setattr(Replaced, "backward", staticmethod(lambda ctx, g: g * 6)),
        lambda: setattr(Replaced, "backward", staticmethod(lambda ctx, g: g)),
    ),
    "an attribute that the context keeps": (
        lambda x: KeepsNumber.apply(x, Settings.scale),
        lambda: setattr(Settings, "scale", 9.0),
        lambda: setattr(Settings, "scale", 3.0),
    ),
    "a class attribute in the set-up of an op": (
        lambda x: torch.ops.jitshape_tests.scaled(x, 3.0),
        lambda: setattr(Settings, "scale", 9.0),
        lambda: setattr(Settings, "scale", 3.0),
    ),
}
IN_BACKWARD: dict[str, Change] = {
    "a global": (
        lambda x: InBackward.apply(x),
        lambda: set_global("SCALE", 7.0),
        lambda: set_global("SCALE", 2.0),
    ),
    "a tensor": (
        lambda x: OfTensor.apply(x),
        lambda: set_global("FACTORS", torch.ones(4)),
        lambda: set_global("FACTORS", torch.arange(4.0)),
    ),
    "a tensor that is written": (
        lambda x: OfTensor.apply(x),
        lambda: FACTORS.add_(1),
        lambda: FACTORS.sub_(1),
    ),
    "a class attribute": (
        lambda x: OfClass.apply(x),
        lambda: setattr(Settings, "scale", 9.0),
        lambda: setattr(Settings, "scale", 3.0),
    ),
    "an attribute of an object that the context keeps": (
        lambda x: KeepsObject.apply(x, kept_settings),
        lambda: setattr(kept_settings, "scale", 9.0),
        lambda: setattr(kept_settings, "scale", 3.0),
    ),
    "an item of a list that the context keeps": (
        lambda x: KeepsList.apply(x, kept_list),
        lambda: kept_list.__setitem__(0, 8.0),
        lambda: kept_list.__setitem__(0, 2.0),
    ),
    "a closure": (
        lambda x: Enclosed.apply(x),
        lambda: enclosed.__setitem__(0, 8.0),
        lambda: enclosed.__setitem__(0, 2.0),
    ),
    "a global in the formula of an op": (
        lambda x: scaled_by_global(x) + 1,
        lambda: set_global("SCALE", 7.0),
        lambda: set_global("SCALE", 2.0),
    ),
    "a global in a function that the formula calls": (
        lambda x: CallsHelper.apply(x),
        lambda: set_global("SCALE", 7.0),
        lambda: set_global("SCALE", 2.0),
    ),
}


def gradients_at(call: Callable, before: Callable[[], None], after: Callable[[], None]) -> list:
    """What `call` and its backward give, with a change between them that is undone."""
    x = torch.arange(1.0, 5.0).requires_grad_()
    result = call(x)
    before()
    result.sum().backward()
    after()
    return [result, x.grad]


@pytest.mark.parametrize("what", IN_FORWARD)
def test_what_forward_reads_is_guarded(what: str) -> None:
    f, change, back = IN_FORWARD[what]
    jitshape.reset()
    compiled = jitshape.compile(f)
    try:
        for setting in (lambda: None, change, back):
            setting()
            results = [gradients_at(call, lambda: None, lambda: None) for call in (f, compiled)]
            torch.testing.assert_close(*results)
    finally:
        back()
    assert jitshape.stats()["graph_breaks"] == 0
    assert jitshape.stats()["compiles"] <= 3


@pytest.mark.parametrize("what", IN_BACKWARD)
def test_what_a_formula_reads_is_read_when_backward_runs(what: str) -> None:
    f, change, back = IN_BACKWARD[what]
    jitshape.reset()
    compiled = jitshape.compile(f)
    for before, after in ((lambda: None, lambda: None), (change, back), (change, back)):
        results = [gradients_at(call, before, after) for call in (f, compiled)]
        torch.testing.assert_close(*results)
    reasons = jitshape.stats()["details"]["break_reasons"]
    assert any("which may be another when backward runs" in text for text in reasons), reasons


def note(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    noted.append(1)
    return g * 2


def writing() -> type:
    def keep(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.noted = noted
        return x * 2

    return function(keep, lambda ctx, g: (ctx.noted.append(1), g * 2)[1])


def raises(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


def two(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x * 3


def one_of_two(ctx: Any, g: torch.Tensor | None, h: torch.Tensor | None) -> Any:
    if g is None or h is None:
        return g if h is None else h * 100
    return g + h


LEFT: dict[str, tuple[Any, str]] = {
    "writes outside": (function(doubled, note), "reads the global noted"),
    "writes what it is given": (writing(), "reads what a list holds"),
    "writes the gradient": (function(doubled, lambda ctx, g: g.mul_(2)), "writes to a tensor"),
    "draws": (
        function(doubled, lambda ctx, g: g + torch.zeros(4).bernoulli_(1.0)),
        "draws random numbers",
    ),
    "needs a number": (
        function(doubled, lambda ctx, g: g * g.sum().item()),
        "needs numbers that exist only at run time",
    ),
    "branches": (function(doubled, lambda ctx, g: g if g.sum() > 1 else g * 2), "branch"),
    "raises": (function(doubled, raises), "raises ValueError"),
    "gives too many": (function(doubled, lambda ctx, g: (g, g)), "other gradients than one"),
    "asks which are defined": (function(unmaterialized, one_of_two), "of which a call may lack"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_would_be_noticed_is_left_to_eager(name: str) -> None:
    made, reason = LEFT[name]

    def f(x: torch.Tensor) -> Any:
        return made.apply(x * 3)

    def outcome(call: Callable) -> Any:
        noted.clear()
        x = torch.arange(4.0).requires_grad_()
        results = call(x)
        assert not noted
        results = results if isinstance(results, tuple) else (results,)
        try:
            results[0].sum().backward()
        except (ValueError, RuntimeError) as error:
            return type(error), str(error), noted[:]
        return [r.tolist() for r in results], x.grad.tolist(), noted[:]

    jitshape.reset()
    compiled = jitshape.compile(f)
    for _ in range(2):
        assert outcome(f) == outcome(compiled)
    reasons = jitshape.stats()["details"]["break_reasons"]
    assert any(reason in text for text in reasons), reasons


def test_a_result_that_views_another_is_left_to_eager() -> None:
    same = function(lambda ctx, x: x, lambda ctx, g: g * 5)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, same.apply(y)

    check(f, (leaf(4),), breaks=1)


def test_a_backward_inside_runs_formulas_where_it_stands() -> None:
    counting = function(with_result, lambda ctx, g: (note(ctx, g), g * ctx.sine)[1])

    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        counting.apply(x * 2).sum().backward()
        found, x.grad = x.grad, None
        return found, len(noted)

    noted.clear()
    expected = f(leaf_of_ones())
    noted.clear()
    jitshape.reset()
    found = jitshape.compile(f)(leaf_of_ones())
    torch.testing.assert_close(found, expected)
    assert jitshape.stats()["graph_breaks"] == 0


def leaf_of_ones() -> torch.Tensor:
    return torch.ones(4, requires_grad=True)


def test_gradients_of_gradients_inside() -> None:
    cube = function(
        lambda ctx, x: saves(ctx, x) ** 3, lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2
    )

    def f(x: torch.Tensor) -> torch.Tensor:
        (g,) = torch.autograd.grad(cube.apply(x).sum(), x, create_graph=True)
        return g * g

    check(f, (leaf(4),), compiles=1)


def test_allowed_functions_with_formulas_are_left_to_eager() -> None:
    allowed = jitshape.allow_in_graph(lambda x: InBackward.apply(x) * 2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return allowed(x + 1)

    check(f, (leaf(4),), breaks=1)
    check(f, (torch.randn(4),))


def test_what_a_gradient_inside_goes_through_may_change() -> None:
    """A hook on the tensor, and attributes of the class that C++ calls and keeps things in."""
    cube = function(
        lambda ctx, x: saves(ctx, x) ** 3, lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2
    )

    def f(x: torch.Tensor) -> torch.Tensor:
        (g,) = torch.autograd.grad(cube.apply(x).sum(), x)
        return g * 2

    compiled, x = jitshape.compile(f), leaf(4)
    assert_same(f(x), compiled(x))
    handle = x.register_hook(lambda grad: grad * 10)
    assert_same(f(x), compiled(x))
    handle.remove()
    assert_same(f(x), compiled(x))
    context = cube._backward_cls
    context.saved_tensors = property(lambda ctx: (torch.full((4,), 2.0),))
    try:
        assert_same(f(x), compiled(x))
    finally:
        del context.saved_tensors
