"""Buffers are taken over, and no takeover raises the peak."""

from __future__ import annotations

import torch

from jitshape.backend.memory import MemoryPlan, Step, peak_bytes, plan_memory
from jitshape.ir.graph import Value
from jitshape.ir.symint import Algebra
from jitshape.ir.types import TensorType

ALGEBRA = Algebra()


def tensor(name: str, size: int, dtype: torch.dtype = torch.float32) -> Value:
    return Value(name, TensorType((size,), (1,), dtype), None)


def steps_of(*rows: tuple[tuple[Value, ...], tuple[Value, ...]]) -> tuple[Step, ...]:
    return tuple(Step(reads, writes, writes) for reads, writes in rows)


def planned(steps: tuple[Step, ...], released: tuple[Value, ...] = ()) -> MemoryPlan:
    layout = {value: value.type for step in steps for value in step.writes}
    return plan_memory(ALGEBRA, steps, set(), layout, set(), True, released)


def peak(steps: tuple[Step, ...], plan: MemoryPlan) -> int:
    return peak_bytes(ALGEBRA, steps, plan, lambda size: size)


def test_a_dead_buffer_is_taken_over() -> None:
    a, b, c = tensor("a", 100), tensor("b", 100), tensor("c", 100)
    steps = steps_of(((), (a,)), ((a,), (b,)), ((b,), (c,)))
    plan = planned(steps)
    assert plan.reuse == {c: a} and peak(steps, plan) == 800


def test_a_buffer_does_not_wait_where_the_peak_is() -> None:
    a, c = tensor("a", 100), tensor("c", 100)
    small, big = tensor("small", 1), tensor("big", 200, torch.int32)
    steps = steps_of(((), (a,)), ((a,), (small,)), ((), (big,)), ((big,), ()), ((small,), (c,)))
    plan = planned(steps)
    assert plan.reuse == {} and peak(steps, plan) == 804


def test_a_buffer_waits_where_there_is_room() -> None:
    """Also where only an input that has died since makes the room."""
    a, c = tensor("a", 100), tensor("c", 100)
    small, big = tensor("small", 1), tensor("big", 200, torch.int32)
    given = tensor("given", 500)
    steps = steps_of(
        *(((), (a,)), ((a, given), (small,)), ((), (big,)), ((big,), ()), ((small,), (c,)))
    )
    assert planned(steps, (given,)).reuse == {c: a}


def test_a_larger_buffer_is_not_held_through_the_peak() -> None:
    a, c = tensor("a", 150), tensor("c", 100)
    big, end = tensor("big", 200, torch.int32), tensor("end", 1)
    steps = steps_of(((), (a,)), ((a,), ()), ((), (c,)), ((), (big,)), ((c, big), (end,)))
    plan = planned(steps)
    assert plan.reuse == {} and peak(steps, plan) == 1204
