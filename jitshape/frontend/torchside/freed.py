"""What a backward frees: which results of a program can have a backward each, one after another.

In: the symbolic results that get a gradient, before any backward ran.  Out: for each a bit set of
the results (itself included) with which it shares a node of autograd's that saved a tensor, and
so frees it.  Invariant: as eager, results that share no such node are independent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_SAVED = "_raw_saved_"


def shared_frees(results: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Bit sets, by the place of the result."""
    freeing = [frozenset(_freeing(result)) for result in results]
    return tuple(
        sum(1 << place for place, theirs in enumerate(freeing) if not own.isdisjoint(theirs))
        for own in freeing
    )


def _freeing(result: torch.Tensor) -> Iterator[Any]:
    """The nodes behind `result` that saved a tensor."""
    todo = [result.grad_fn]
    seen = set(todo)
    while todo:
        node: Any = todo.pop()
        if node is None:
            continue
        if _saved_tensor(node):
            yield node
        for behind, _ in node.next_functions:
            if behind not in seen:
                seen.add(behind)
                todo.append(behind)


def _saved_tensor(node: Any) -> bool:
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return any(t is not None for t in node.saved_tensors)
    return any(_is_tensor(getattr(node, name)) for name in _saved_names(type(node)))


def _is_tensor(saved: Any) -> bool:
    return any(t is not None for t in saved) if isinstance(saved, tuple) else saved is not None


@functools.cache
def _saved_names(cls: type) -> tuple[str, ...]:
    names = (name for name in dir(cls) if name.startswith(_SAVED))
    return tuple(f"_saved_{name.removeprefix(_SAVED)}" for name in names)
