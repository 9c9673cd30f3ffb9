"""The public functions.  What they need of torch is imported at their first use."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from jitshape.dims import make_spec
from jitshape.errors import BadDimension, BadMark, NotCallable, UnknownOption
from jitshape.options import make_options, switched

STANCES = ("default", "force_eager", "fail_on_recompile", "eager_on_recompile")


def compile(
    fn: Any = None,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    backend: str | Callable = "auto",
    mode: str = "default",
    options: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    disable: bool = False,
    name: str | None = None,
) -> Any:
    """Compile a function, method or nn.Module; also a decorator, with or without arguments.

    dynamic: None (static at first, symbolic for what changes), True (symbolic from the start),
    False (one compile per size).  fullgraph: a graph break is an error.  backend: "auto" (Triton
    on CUDA tensors, LLVM kernels otherwise), "cpu", "triton", "eager" (the graph with ATen), a
    callable `(graph, example_inputs) -> callable`, or one of torch's own ("inductor").  options:
    suppress_errors, recompile_limit, unroll_limit, memory_plan, fast_random, cache.
    dynamic_shapes: by argument name, which sizes are symbolic from the start, in which range, and
    how they are related: `{"x": {0: Dim("batch", max=64)}}`.
    disable: return `fn` itself.  name: what messages and stats call the function.

    Returns a callable like `fn` (with `__wrapped__`), or an nn.Module that shares the state of
    the one given.  Raises NotCallable, UnknownOption, BadSpec.
    """
    named = dict(dynamic=dynamic, fullgraph=fullgraph, backend=backend, mode=mode, name=name)
    checked = make_options(options, **named)
    if fn is None:
        return functools.partial(
            compile,
            dynamic=dynamic,
            fullgraph=fullgraph,
            backend=backend,
            mode=mode,
            options=options,
            dynamic_shapes=dynamic_shapes,
            disable=disable,
            name=name,
        )
    _demand_callable(fn, "compile")
    checked = make_options(options, **named, dynamic_shapes=make_spec(dynamic_shapes, fn))
    if disable or switched("DISABLE"):
        return fn
    from jitshape import compiler

    return compiler.compiled(fn, checked)


def _demand_callable(fn: Any, asked: str) -> None:
    if not callable(fn):
        raise NotCallable(
            f"jitshape.{asked} got {type(fn).__name__}, which cannot be called",
            because="it compiles functions, methods and nn.Modules",
            avoid="pass the function itself, not its result",
        )


def disable(fn: Any = None, *, recursive: bool = True) -> Any:
    """Mark `fn` as never compiled: calling it is a graph break, and it runs eagerly."""
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    target = fn.__func__ if isinstance(fn, types.MethodType) else fn
    from jitshape import compiler

    return compiler.disabled(target if isinstance(fn, types.FunctionType) else fn)


def allow_in_graph(fn: Callable) -> Callable:
    """Run `fn` natively on the symbolic tensors while tracing, instead of inlining its code.

    The caller promises that it reads nothing but its arguments."""
    from jitshape import compiler

    return compiler.allow_in_graph(fn)


def is_compiling() -> bool:
    """True while jitshape traces the calling code (so: inside compiled functions)."""
    return False


def mark_dynamic(
    tensor: Any,
    dim: int | tuple[int, ...] | list[int],
    min: int | None = None,
    max: int | None = None,
    hint: int | None = None,
) -> None:
    """Size `dim` of `tensor` is symbolic from the first compile on; a program that needs one
    value of it is an error (BrokenPromise).  min, max: the range that the compiled code must
    serve.  hint: a size to choose by where a choice depends on it.  Raises BadMark."""
    _mark(tensor, dim, "dynamic", min=min, max=max, hint=hint)


def maybe_mark_dynamic(tensor: Any, dim: int | tuple[int, ...] | list[int]) -> None:
    """As mark_dynamic, but a program that needs one value of the size gets it."""
    _mark(tensor, dim, "maybe_dynamic")


def mark_static(tensor: Any, dim: int | tuple[int, ...] | list[int] | None = None) -> None:
    """Size `dim` (None: all) of `tensor` is compiled for each value."""
    every = range(getattr(tensor, "ndim", 0))
    _mark(tensor, every if dim is None else dim, "static")


def mark_unbacked(tensor: Any, dim: int | tuple[int, ...] | list[int]) -> None:
    """Size `dim` is symbolic and no decision may be taken on its value: one that is needed is an
    error (BrokenPromise)."""
    _mark(tensor, dim, "unbacked")


def _mark(tensor: Any, dims: Any, kind: str, **bounds: int | None) -> None:
    from jitshape.frontend import marks

    if not hasattr(tensor, "ndim"):
        raise BadMark(
            f"{marks.CALLS[kind]} of {type(tensor).__name__}",
            because="only tensors have sizes to mark",
        )
    for dim in dims if isinstance(dims, (tuple, list, range)) else [dims]:
        if not hasattr(dim, "__index__"):
            raise BadMark(
                f"{marks.CALLS[kind]} of dimension {dim!r}",
                because="a dimension is an int; several are a tuple or a list of them",
            )
        if not -tensor.ndim <= dim < tensor.ndim:
            raise BadDimension(
                f"{marks.CALLS[kind]} of dimension {dim}",
                because=f"the tensor has {tensor.ndim} dimension{'s' * (tensor.ndim != 1)}",
            )
        marks.mark(tensor, dim % tensor.ndim, kind, **bounds)


def set_stance(stance: str) -> Any:
    """What a function that was compiled before does with a call that none of its entries serves:
    "default" compiles; "fail_on_recompile" raises; "eager_on_recompile" runs that call eagerly.
    "force_eager" runs every call eagerly.  Also usable in `with`, which restores the former
    stance."""
    if stance not in STANCES:
        raise UnknownOption(
            f"unknown stance {stance!r}", because=f"stances are {', '.join(STANCES)}"
        )
    from jitshape import compiler

    return compiler.set_stance(stance)


def explain(fn: Callable) -> Callable:
    """`jitshape.explain(fn)(*args)` compiles and calls `fn` and returns an Explanation: graphs,
    breaks, guards, kernels; `print()` it.  Raises NotCallable."""
    _demand_callable(fn, "explain")
    from jitshape.observe.explain import explain as explain_

    return explain_(fn)


def set_logs(spec: str) -> None:
    """Show log artefacts; `spec` as in JITSHAPE_LOGS ("dynamic,guards"), "" for none."""
    from jitshape.observe.logs import set_logs as set_logs_

    set_logs_(spec)


def history() -> tuple[Any, ...]:
    """The records since `reset()`: compiles, recompiles with the guard that failed, breaks,
    fallbacks (observe/records.py)."""
    from jitshape.observe import records

    return records.records()


def stats() -> dict[str, Any]:
    """Counters since `reset()`; the keys are described in docs/guide.md."""
    from jitshape.observe import counters

    return counters.snapshot()


def reset() -> None:
    """Forget all compiled code, learned shapes (those of earlier runs too, though their file
    stays), counters and records."""
    import sys

    from jitshape import profile
    from jitshape.observe import counters, records

    profile.forget()

    if "jitshape.compiler" in sys.modules:
        sys.modules["jitshape.compiler"].reset()
    counters.clear()
    records.clear()
