"""What releases memory runs before what takes more; needs come first."""

from __future__ import annotations

import torch

from jitshape.backend.fusion import Group, Space
from jitshape.backend.ordering import Traffic, in_order
from jitshape.ir.graph import Value
from jitshape.ir.types import TensorType


def tensor(name: str, size: int) -> Value:
    return Value(name, TensorType((size,), (1,), torch.float32), None)


def group(last: int, *needs: Group) -> Group:
    return Group([], Space((), ()), last, last, needs=set(needs))


def test_a_sum_goes_before_what_makes_more() -> None:
    big, small, weight = tensor("big", 1000), tensor("small", 10), tensor("weight", 2000)
    maker, product, cast, total = group(0), group(1), group(2), group(3)
    product.needs, cast.needs, total.needs = {maker}, {product}, {maker}
    reads = {maker: [], product: [big], cast: [weight], total: [big]}
    makes = {maker: [big], product: [weight], cast: [tensor("cast", 2000)], total: [small]}
    found = in_order([maker, product, cast, total], Traffic(reads, makes))
    assert found == [maker, product, total, cast]


def test_needs_come_first() -> None:
    big, small = tensor("big", 1000), tensor("small", 10)
    maker, other, total = group(0), group(1), group(2)
    total.needs, other.needs = {maker, other}, {maker}
    reads = {maker: [], other: [], total: [big]}
    makes = {maker: [big], other: [small], total: []}
    assert in_order([maker, other, total], Traffic(reads, makes)) == [maker, other, total]


def test_otherwise_as_in_the_program() -> None:
    """A tensor that stays, such as an argument, is no reason."""
    groups = [group(place) for place in range(4)]
    nothing: dict[Group, list[Value]] = {g: [] for g in groups}
    makes = {g: [tensor(f"t{g.last}", 4)] for g in groups}
    assert in_order(groups[::-1], Traffic(nothing, makes)) == groups
