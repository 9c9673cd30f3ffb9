"""Ops that raise for the values they find: at their line, into the program's handlers, with all
done that stands before them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitshape
from tests.programs.compare import assert_same, clone

noted: list[Any] = []


def handled(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    try:
        y = x[places]
    except IndexError as error:
        return x * len(str(error))
    return y * 2


def of_two_handlers(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    try:
        try:
            return torch.gather(x, 0, places)
        except IndexError:
            return x
    except RuntimeError:
        return x * 3


def at_last(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    try:
        return x.index_select(0, places)
    finally:
        noted.append(places.shape[0])


def in_a_context(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(IndexError):
        return F.embedding(places, x.unsqueeze(1))
    return x + 1


def after_effects(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    noted.append("before")
    x.add_(1)
    y = x[places]
    noted.append("behind")
    x.mul_(2)
    return y


def after_randoms(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(4)
    try:
        return x[places] + noise.sum()
    except IndexError:
        return torch.rand(4) + noise


def behind_a_break(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    print(end="")
    noted.append(1)
    try:
        return x[places] * 2
    except IndexError:
        return x


def of_an_integer_division(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    try:
        return 12 // (places - 7)
    except RuntimeError as error:
        noted.append(str(error))
        return places


def of_a_write(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    y = x * 1
    with contextlib.suppress(IndexError):
        y.index_add_(0, places, x[: places.shape[0]])
    x.sub_(1)
    return y


def of_a_loss(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    try:
        return F.cross_entropy(x.expand(places.shape[0], -1), places)
    except IndexError:
        return x.sum()


def in_training(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    w = (x * 2).requires_grad_()
    try:
        (w[places] * 3).sum().backward()
    except IndexError:
        (w * 5).sum().backward()
    return w.grad


PROGRAMS = [handled, of_two_handlers, at_last, in_a_context, after_effects, after_randoms,
            behind_a_break, of_an_integer_division, of_a_write, of_a_loss, in_training]  # fmt: skip


def outcome(f: Callable, args: tuple) -> tuple:
    noted.clear()
    torch.manual_seed(3)
    try:
        result = f(*args)
    except Exception as error:
        result = [type(error).__name__, str(error), lines_of(error)]
    return result, list(noted), args, torch.rand(1)


def lines_of(error: BaseException) -> list[str]:
    """The user's lines that the traceback shows."""
    rows = traceback.extract_tb(error.__traceback__)
    return [str(row.line) for row in rows if row.filename == __file__ and row.name != "outcome"]


@pytest.mark.parametrize("function", PROGRAMS)
def test_as_eager(function: Callable) -> None:
    jitshape.reset()
    compiled = jitshape.compile(function)
    x = torch.arange(5.0)
    for places in ([1, 2], [1, 7], [3, 0, 4], [2, 7, 9], [4, 4]):
        args = (x, torch.tensor(places))
        found, expected = (outcome(f, clone(args)) for f in (compiled, function))
        assert_same(expected, found, f"at {places}")


def test_only_calls_that_raise_are_made_again() -> None:
    """One entry serves them all; a call whose program goes on all the same is a fallback."""
    jitshape.reset()
    compiled, x = jitshape.compile(handled), torch.arange(5.0)
    for places in ([1, 2], [1, 7], [3, 0], [0, 9]):
        compiled(x, torch.tensor(places))
    stats = jitshape.stats()
    assert stats["compiles"] == 1 and stats["fallbacks"] == 2
    (reason,) = {text.partition(":")[0] for text in stats["details"]["fallback_reasons"]}
    assert reason == "the graph raises IndexError"


@pytest.mark.parametrize("op", [torch.linalg.cholesky, torch.linalg.inv])
def test_linear_algebra(op: Callable) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return op(x) * 2
        except torch.linalg.LinAlgError:
            return x - 1

    compiled = jitshape.compile(f)
    for x in (torch.eye(3), torch.zeros(3, 3), torch.zeros(4, 4), torch.eye(4) * 2):
        assert_same(f(x), compiled(x))


def test_custom_op() -> None:
    """An op of the user's raises its own error; one that gives nothing is not called again."""
    calls: list[str] = []

    @torch.library.custom_op("jitshape_raising::checked", mutates_args=())
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    checked.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return checked(x + 1)
        except ValueError:
            calls.append("handled")
            return x

    compiled = jitshape.compile(f)
    for x in (torch.ones(3), -torch.ones(3) * 3, torch.ones(4)):
        assert_same(f(x), compiled(x))
    assert calls == ["handled"] * 2


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.addmm, (torch.ones(3, dtype=torch.float64), torch.ones(2, 4), torch.ones(4, 3))),
        (F.linear, (torch.ones(2, 4), torch.ones(3, 4), torch.ones(3, dtype=torch.float64))),
        (torch.view_as_complex, (torch.ones(3, 2, dtype=torch.complex64),)),
    ],
)
def test_dtypes_that_do_not_go_together(function: Callable, args: tuple) -> None:
    def f(*args: torch.Tensor) -> torch.Tensor:
        return function(*args)

    for fn in (f, jitshape.compile(f)):
        with pytest.raises(RuntimeError, match=r"dtype|only supported"):
            fn(*args)
