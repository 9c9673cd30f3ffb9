"""Numbers that exist only when the graph runs: read, counted, sliced by, demanded, refuted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitshape
from tests.programs.compare import assert_same, check, clone

X = torch.arange(12.0).reshape(6, 2)
NUMBERS = (2, 3, 1, 5)


def each(*numbers: Any) -> list[tuple]:
    return [(X - place, torch.tensor(n)) for place, n in enumerate(numbers)]


def rows(x: torch.Tensor) -> torch.Tensor:
    return x[x.sum(1) > 5]


PROGRAMS: dict[str, Callable] = {
    "slice_to": lambda x, i: x[: i.item()] * 2,
    "slice_from": lambda x, i: x[i.item() :] * 2,
    "slice_between": lambda x, i: x[i.item() : (i + 2).item(), :1] + 1,
    "select": lambda x, i: x[i.item()],
    "select_behind": lambda x, i: x.t()[:, i.item()],
    "narrow": lambda x, i: x.narrow(0, 0, i.item()) + 1,
    "factory": lambda x, i: torch.zeros(i.item(), 3) + 1,
    "expand": lambda x, i: x[:1].expand(i.item(), 2) + 0,
    "arithmetic": lambda x, i: x * (i.item() % 3) + i.item() // 2,
    "truth": lambda x, i: ((i > 1).item(), int((i > 1).item()) + 3, (i > 2).item() == 1),
    "truth_of_a_number": lambda x, i: (i.item() > 2, 3 >= i.item(), i.item() == x.shape[1]),
    "list_of_truths": lambda x, i: (torch.stack([i, i + 1]) > 2).tolist(),
    "nested_list": lambda x, i: (x[:2] * i).tolist(),
    "count_returned": lambda x, i: (x[x > 3].shape, x[x > 3].numel(), len(torch.nonzero(x > i))),
    "masked_rows": lambda x, i: torch.relu(rows(x) @ torch.ones(2, 3)).mean(0),
    "masked_by_itself": lambda x, i: rows(x) + torch.ones(rows(x).shape[0], 1),
    "two_counts_of_one_mask": lambda x, i: x[x > 3].unsqueeze(0) @ x[x > 3].unsqueeze(1),
    "masked_batch_norm": lambda x, i: F.batch_norm(rows(x), None, None, training=True),
    "masked_softmax": lambda x, i: torch.softmax(rows(x), -1),
    "both_parts": lambda x, i: torch.cat([rows(x), x[x.sum(1) <= 5]]),
    "reshaped": lambda x, i: x.reshape(i.item() % 3 + 1, -1),
    "assigned": lambda x, i: torch.zeros_like(x).masked_scatter(x > 3, x[x > 3]),
    "embedded": lambda x, i: F.embedding(torch.nonzero(x[:, 0] > 3)[:, 0], x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_every_number(name: str) -> None:
    check(PROGRAMS[name], *each(*NUMBERS), compiles=1)
    assert jitshape.stats()["compiles"] == 1


def test_split_by_a_list_of_sizes() -> None:
    def f(x: torch.Tensor, sizes: torch.Tensor) -> list:
        return [part * 2 for part in x.split(sizes.tolist())]

    check(f, *[(X, torch.tensor(s)) for s in ([2, 4], [3, 3], [0, 6])], compiles=1)


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_gradients_of_what_a_mask_selects(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (rows(x) ** 2).sum() + x[: (x > 3).sum().item()].sum()

    calls = [((X - n).requires_grad_(),) for n in range(3)]
    check(f, *calls, compiles=1, backend=backend)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_count_that_backward_counts_again(dynamic: bool | None) -> None:
    """The gradient's own selection has as many elements: backward is written with one of the two
    numbers, and has the other from what forward saved."""
    norm = torch.nn.BatchNorm1d(3, track_running_stats=False)

    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        out[mask] = norm(x[mask])
        return out

    grid = torch.linspace(-1.0, 2.0, 24).reshape(8, 3)
    calls = [(grid.clone().requires_grad_(), torch.arange(8) % n != 0) for n in (3, 2)]
    check(f, *calls, compiles=1, dynamic=dynamic)


# ---- what a run refutes


def outcome(fn: Callable, *args: Any) -> tuple:
    """The result or the error, and the arguments after the call."""
    args = clone(args)
    try:
        return ("returns", fn(*args), args)
    except Exception as error:
        return ("raises", type(error), str(error), args)


def agree(fn: Callable, calls: list[tuple], **options: Any) -> dict:
    """Eager's outcomes, also where it raises; the statistics behind them."""
    jitshape.reset()
    compiled = jitshape.compile(fn, **options)
    for number, args in enumerate(calls):
        expected, got = outcome(fn, *args), outcome(compiled, *args)
        assert expected[:2] == got[:2] if expected[0] == "raises" else expected[0] == got[0]
        assert_same(expected[1:] if expected[0] == "returns" else expected[2:],
                    got[1:] if got[0] == "returns" else got[2:], f"call {number}")  # fmt: skip
    return jitshape.stats()


NEGATIVE: dict[str, Callable] = {
    name: PROGRAMS[name] for name in ("slice_to", "slice_from", "select", "select_behind")
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_a_negative_number_is_met_once_and_served_from_then_on(name: str) -> None:
    found = agree(NEGATIVE[name], each(2, -1, 3, -2, 0, 1))
    assert (found["fallbacks"], found["compiles"], found["graph_breaks"]) == (1, 2, 0)


ERRORS: dict[str, tuple[Callable, tuple, type]] = {
    "index": (PROGRAMS["select"], (2, 9, 3, -9), IndexError),
    "narrow": (PROGRAMS["narrow"], (2, 9, 3), RuntimeError),
    "reshape": (lambda x, i: x.reshape(i.item(), -1), (2, 5, 0, 3), RuntimeError),
    "matmul": (lambda x, i: x.t() @ torch.ones(i.item(), 2), (6, 5), RuntimeError),
    "cat": (lambda x, i: torch.cat([x, torch.ones(i.item(), 1)], 1), (6, 5), RuntimeError),
    "division": (lambda x, i: x * (12 // i.item()), (2, 0, 3), ZeroDivisionError),
    "size": (lambda x, i: torch.zeros(i.item()), (2, -3, 1), RuntimeError),
    "batch_norm": (PROGRAMS["masked_batch_norm"], (2,), ValueError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_eager(name: str) -> None:
    fn, numbers, error = ERRORS[name]
    calls = each(*numbers)
    if name == "batch_norm":
        calls.append((torch.tensor([[9.0, 1.0], [0.0, 0.0]]).repeat(1, 1), calls[0][1]))
        calls[-1] = (torch.cat([calls[-1][0], torch.zeros(4, 2)]), calls[0][1])
    assert any(outcome(fn, *args)[1] is error for args in calls)
    found = agree(fn, calls)
    assert (found["fallbacks"], found["compiles"]) == (0, 1)


def test_what_happened_before_a_failed_demand_has_happened() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, seen: list) -> torch.Tensor:
        n = i.item()
        seen.append(1)
        x.add_(1)
        torch._check(n > 2, lambda: f"only {n}")
        seen.append(2)
        x.mul_(2)
        return x[:n]

    calls = [(X, torch.tensor(n), []) for n in (3, 1, 4)]
    assert [outcome(f, *args)[0] for args in calls] == ["returns", "raises", "returns"]
    found = agree(f, calls)
    assert (found["fallbacks"], found["compiles"], found["graph_breaks"]) == (0, 1, 0)


@pytest.mark.parametrize(
    ("demand", "error"),
    [
        (torch._check, RuntimeError),
        (torch._check_index, IndexError),
        (torch._check_value, ValueError),
    ],
)
def test_demands_of_the_program(demand: Callable, error: type) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        demand((i >= 1).item())
        demand(i.item() < x.size(0), lambda: "too many")
        return x + i

    calls = each(2, 1, 0, 7, 3)
    assert {outcome(f, *args)[1] for args in calls[2:4]} == {error}
    found = agree(f, calls, fullgraph=True)
    assert (found["compiles"], found["fallbacks"]) == (1, 0)


def test_branches_that_only_raise_are_demands() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        n = i.item()
        if not n != 3:  # as an assert, which pytest writes otherwise
            raise AssertionError(f"three: {n}")
        if n > 5:
            raise KeyError(n)
        return x * n

    found = agree(f, each(2, 3, 4, 6, 5), fullgraph=True)
    assert (found["compiles"], found["fallbacks"]) == (1, 0)


def test_truths_of_tensors_that_only_raise_are_demands() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if not (x > -2).all():
            raise ValueError(f"small: {x.shape}")
        scores = torch.distributions.Normal(x, x.exp()).log_prob(x * 2)
        return scores * torch.distributions.Gumbel(x.mean(), x.exp().mean()).support.event_dim

    calls = [(torch.full((n,), v),) for n, v in ((3, 1.0), (4, 0.5), (5, -3.0), (6, 2.0))]
    found = agree(f, calls, fullgraph=True)
    assert (found["compiles"], found["graph_breaks"]) == (2, 0)


def test_a_count_of_one_broadcasts_as_in_eager() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[: i.item()] + torch.ones(3, 2)

    found = agree(f, each(3, 1, 2, 3, 1))
    assert found["fallbacks"] == 1 and found["graph_breaks"] >= 1


def test_random_numbers_are_drawn_once() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(3)
        return noise.sum() * x[: (i + noise.sum().long() * 0).item()]

    jitshape.reset()
    results = []
    for run in (f, jitshape.compile(f)):
        torch.manual_seed(3)
        results.append([run(*args) for args in each(2, -1, 3)] + [torch.rand(2)])
    assert_same(*results)
    assert jitshape.stats()["fallbacks"] == 1


def test_a_branch_with_two_ways_ends_the_graph_and_says_why() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = rows(x)
        if y.numel() < 3:
            return x
        return y * 2

    check(f, *[(X - n,) * 2 for n in (0, 100, 3)], breaks=1)
    (reason,) = jitshape.stats()["details"]["break_reasons"]
    assert "2*u0 < 3" in reason


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_leave_as_truths(op: str) -> None:
    compared = getattr(operator, op)

    def f(x: torch.Tensor, i: torch.Tensor) -> tuple:
        return compared(i.item(), 3), compared(x.sum().item(), 60.0), x + 1

    check(f, *each(2, 3, 4), compiles=1)


def test_what_a_mask_takes_may_be_written_where_it_was_taken() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        out[mask] = x[mask] * 2
        return out

    calls = [(torch.randn(n, 3, requires_grad=True), torch.rand(n) > 0.3) for n in (5, 9, 4)]
    check(f, *calls, fullgraph=True)


def test_comparisons_that_give_a_bool_are_results() -> None:
    def f(x, y):
        return torch.equal(x, y), x.allclose(y, atol=1e-3), torch.equal(x, y) + 1

    x = torch.rand(3)
    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True, fullgraph=True)
    for other in (x.clone(), x + 1e-4, x + 1, torch.rand(4)[:2]):
        if other.shape == x.shape:
            assert compiled(x, other) == f(x, other)
    assert jitshape.stats()["compiles"] == 1


def test_a_branch_on_such_a_bool_is_a_break() -> None:
    def f(x, y):
        return x + 1 if torch.equal(x, y) else x - 1

    check(f, (torch.ones(3), torch.ones(3)), (torch.ones(3), torch.zeros(3)), breaks=1)


def test_what_torch_checks_of_values_is_asserted_when_the_graph_runs() -> None:
    def f(x, variance):
        return torch.nn.functional.gaussian_nll_loss(x, x + 1, variance)

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for n in (3, 4):
        x, variance = torch.rand(n), torch.rand(n)
        torch.testing.assert_close(compiled(x, variance), f(x, variance))
    assert jitshape.stats()["graph_breaks"] == 0
    with pytest.raises(ValueError, match="negative"):
        compiled(torch.rand(3), torch.tensor([1.0, -1.0, 1.0]))


EMPTINESS: dict[str, Callable[[torch.Tensor], Any]] = {
    "more than none": lambda y: y - y.mean(0) if y.shape[0] > 0 else y,
    "no more than none": lambda y: y if y.shape[0] < 1 else y - y.mean(0),
    "is none": lambda y: y + 1 if y.shape[0] == 0 else y.cumsum(0),
    "len": lambda y: y.sum() if len(y) else y.new_ones(()),
    "numel": lambda y: y.sum() if y.numel() != 0 else y.new_ones(()),
}


@pytest.mark.parametrize("name", EMPTINESS)
def test_something_is_taken_to_be_selected(name: str) -> None:
    """Until a call finds nothing: from then on the branch ends the graph."""
    log: list[int] = []

    def f(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        log.append(1)
        return EMPTINESS[name](x[x > 0]) * total.sum()

    full = [(torch.linspace(-1, 2, n), torch.ones(2)) for n in (4, 5, 6)]
    found = agree(f, full)
    assert (found["fallbacks"], found["graph_breaks"], len(log)) == (0, 0, 6)
    found = agree(
        f, [*full, (-torch.ones(3), torch.ones(2)), *full, (-torch.ones(4), torch.ones(2))]
    )
    assert (found["fallbacks"], found["graph_breaks"], len(log)) == (1, 1, 22)


def test_other_tests_of_sizes_of_run_time_end_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        return y + 1 if y.shape[0] > 3 else y - 1

    found = agree(f, [(torch.ones(n),) for n in (2, 5, 4)], dynamic=True)
    assert found["graph_breaks"] == 1


def test_the_larger_of_numbers_of_run_time() -> None:
    def f(x: torch.Tensor) -> tuple:
        n = int((x > 0).sum())
        return x / max(n, 1), x[: min(n, 2)], max(3, n, 1), min(n, n + 1, 4)

    found = agree(f, [(torch.linspace(-2, 1, n),) for n in (4, 9, 7)] + [(-torch.ones(3),)])
    assert found["graph_breaks"] == 0


def test_a_truth_is_no_test_for_emptiness():
    def f(x, mask):
        return x + 1 if mask.any().item() else x - 1

    jitshape.reset()
    compiled = jitshape.compile(f)
    x, mask = torch.randn(3), torch.zeros(3, dtype=torch.bool)
    for choice in (mask, ~mask, mask):
        torch.testing.assert_close(compiled(x, choice), f(x, choice))
    assert jitshape.stats()["graph_breaks"] == 1
    assert jitshape.stats()["fallbacks"] == 0


@pytest.mark.parametrize("used", [True, False])
def test_a_size_that_must_be_one_number_is_looked_at(used: bool) -> None:
    """Though the graph goes on with the number itself."""

    def f(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero()
        torch._check(found.size(0) == 3)
        return found + 1 if used else x + 1

    compiled, x = jitshape.compile(f, fullgraph=True), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert_same(f(x), compiled(x))
    with pytest.raises(RuntimeError, match="Expected cond"):
        compiled(torch.tensor([1.0, 0.0, 0.0, 0.0]))
