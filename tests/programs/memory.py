"""What a program leaves in memory: which tensors are one, share memory or a base, and how often
they were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import jitshape
from tests.programs.compare import assert_same, tensors_in


def memory_of(tensors: Sequence[torch.Tensor]) -> list[tuple]:
    """A row for each tensor.  A base that is none of the tensors cannot be told from none."""
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    rows = []
    for place, t in enumerate(tensors):
        base = next((i for i, other in enumerate(tensors) if other is t._base), None)
        rows.append(
            (
                f"is tensor {objects.setdefault(id(t), place)}",
                f"in the memory of {storages.setdefault(t.untyped_storage()._cdata, place)}",
                f"at {t.storage_offset()}",
                f"view of {base}",
                f"version {t._version}",
                f"conj {t.is_conj()} neg {t.is_neg()}",
                f"requires grad {t.requires_grad}",
            )
        )
    return rows


def outcome(f: Callable, inputs: list[Any]) -> Any:
    """The result, or the error as (class, text)."""
    try:
        return f(*inputs)
    except RuntimeError as error:
        return type(error), str(error)


def check_memory(
    f: Callable, *makes: Callable[[], list[Any]], breaks: int | None = 0, **options: Any
) -> None:
    """Compiled `f` on fresh inputs of each of `makes` leaves values and memory as eager."""
    jitshape.reset()
    compiled = jitshape.compile(f, **options)
    for number, make in enumerate(makes):
        results, inputs = [], []
        for function in (f, compiled):
            torch.manual_seed(number)
            inputs.append(make())
            results.append(outcome(function, inputs[-1]))
        where = f"call {number}"
        both = [tensors_in([given, result]) for given, result in zip(inputs, results)]
        assert_same(results[0], results[1], where)
        assert_same(inputs[0], inputs[1], f"{where}: inputs")
        expected, found = (memory_of(tensors) for tensors in both)
        assert expected == found, where
    if breaks is not None:
        assert jitshape.stats()["graph_breaks"] == breaks, jitshape.stats()["details"]
