"""Compare a compiled program with eager: values, dtypes, strides, aliasing, gradients, mutation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import jitshape

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def clone(tree: Any) -> Any:
    """Independent inputs of the same layout; leaves stay leaves."""
    if isinstance(tree, torch.Tensor):
        # deepcopy of a view clones its storage whole, so strides and offsets survive
        return copy.deepcopy(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(clone(item) for item in tree)
    if isinstance(tree, dict):
        return {key: clone(item) for key, item in tree.items()}
    return tree


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in tensors_in(item)]
    return []


def strides_of(t: torch.Tensor) -> tuple[int | None, ...]:
    """Strides that can be observed: of dimensions of size > 1 in a tensor with elements."""
    if t.numel() == 0:
        return ()
    return tuple(st if size > 1 else None for st, size in zip(t.stride(), t.shape))


def assert_same(expected: Any, got: Any, where: str = "result") -> None:
    """Equal in everything a program can observe, elements within the dtype's tolerance."""
    assert type(expected) is type(got), f"{where}: {type(expected)} and {type(got)}"
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == got.dtype, f"{where}: {expected.dtype} and {got.dtype}"
        assert expected.shape == got.shape, f"{where}: {expected.shape} and {got.shape}"
        assert strides_of(expected) == strides_of(got), f"{where}: strides {got.stride()}"
        assert expected.requires_grad == got.requires_grad, f"{where}: requires_grad"
        tolerance = TOLERANCE.get(expected.dtype, 0.0)
        torch.testing.assert_close(
            got,
            expected,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m: f"{where}: {m}",
        )
    elif isinstance(expected, dict):
        assert list(expected) == list(got), f"{where}: keys {list(got)}"
        for key in expected:
            assert_same(expected[key], got[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got), f"{where}: length {len(got)}"
        for index, (a, b) in enumerate(zip(expected, got)):
            assert_same(a, b, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert expected == got or (expected != expected and got != got), f"{where}: {got}"
    else:
        assert expected == got, f"{where}: {got!r} is not {expected!r}"


def gradients(result: Any, inputs: Any) -> list[torch.Tensor | None]:
    """Gradients of all leaves in `inputs` for fixed tangents."""
    outs = [t for t in tensors_in(result) if t.requires_grad]
    leaves = [t for t in tensors_in(inputs) if t.requires_grad and t.is_leaf]
    if not outs or not leaves:
        return []
    generator = torch.Generator().manual_seed(7)
    tangents = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outs]
    found = torch.autograd.grad(outs, leaves, tangents, allow_unused=True)
    # eager's strides here follow from the order of its sums; in `.grad` they follow the leaf
    return [g if g is None else g.contiguous() for g in found]


# What `check` compiled, with a call of it, for --all-mutations.
checked: list[tuple[Callable, Callable, tuple]] = []


def check(
    fn: Callable,
    *calls: tuple,
    compiles: int | None = None,
    parameters: Callable[[], list[torch.Tensor]] = list,
    fallbacks: int = 0,
    breaks: int = 0,
    **options: Any,
) -> Callable:
    """Call compiled `fn` with each argument tuple of `calls` and demand eager's outcome; also
    the number of compiles (at most), of fallbacks and of graph breaks (exactly)."""
    jitshape.reset()
    compiled = jitshape.compile(fn, **options)
    for number, args in enumerate(calls):
        mine, theirs = clone(args), clone(args)
        expected = fn(*theirs)
        got = compiled(*mine)
        where = f"call {number}"
        assert_same(expected, got, where)
        assert_same(theirs, mine, f"{where}: arguments")
        leaves = parameters()
        assert_same(
            gradients(expected, (theirs, leaves)),
            gradients(got, (mine, leaves)),
            f"{where}: gradients",
        )
    stats = jitshape.stats()
    assert stats["fallbacks"] == fallbacks, stats["details"]
    assert stats["graph_breaks"] == breaks, stats["details"]
    if compiles is not None:
        assert stats["compiles"] <= compiles, [str(r) for r in jitshape.history()]
    checked.append((compiled, fn, calls[0]))
    return compiled
