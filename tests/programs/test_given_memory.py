"""Arguments, and tensors of the graph, that are given the memory of another tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same
from tests.programs.memory import check_memory


def of_another_argument(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    return x * 2


def of_a_result(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    x.data = y * 3
    return x * 2, x


def written_by_its_owner(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    y.add_(1)
    return x * 2


def swapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data, y.data = y.data, x.data
    return x - y


def averaged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = x.data * 0.5 + y
    return x.sum()


def set_to_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.set_(y[:2])
    return x * 2


def set_to_a_result(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.set_(y * 2)
    return x, y


def made_inside(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    t, u = x * 2, x * 3
    t.data = y
    u.set_(y)
    return t, u


def make() -> list[torch.Tensor]:
    return [torch.randn(3, 4), torch.randn(3, 4)]


IN_GRAPH = [
    *(of_another_argument, of_a_result, written_by_its_owner, swapped, averaged),
    *(set_to_a_part, set_to_a_result, made_inside),
]


@pytest.mark.parametrize("program", IN_GRAPH)
def test_is_in_the_graph(program: Any) -> None:
    check_memory(program, make, make)


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    x.add_(1)
    return x * 2


def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    x.data = z
    z.t_()
    return x * 2


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    x.data = y * 2
    return x * 1


def written_in_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.set_(y.clone())
    x[0] = 5
    return x * 2


def a_view(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = (x * 2).unsqueeze(0)
    z.data = y
    return z, x


def moved_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.sum(0).unsqueeze_(0)
    z.set_(y.clone())
    return z


@pytest.mark.parametrize("program", [written, turned, twice, written_in_part, a_view, moved_before])
def test_is_left_to_eager(program: Any) -> None:
    check_memory(program, make, make, breaks=1)


@pytest.mark.parametrize("program", [of_another_argument, averaged])
def test_a_parameter_gets_its_gradient(program: Any) -> None:
    outcomes = []
    for call in (program, jitshape.compile(program)):
        torch.manual_seed(0)
        x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
        result = (call(x, y) ** 2).sum()
        result.backward()
        outcomes.append([result, x.grad, x.detach(), y, x._version])
    assert_same(*outcomes)


def test_the_same_argument_twice() -> None:
    compiled = jitshape.compile(of_a_result)
    compiled(*make())
    x, z = torch.ones(3, 4), torch.ones(3, 4)
    assert_same(of_a_result(x, x), compiled(z, z))
    assert_same(x, z)
