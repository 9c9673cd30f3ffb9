"""Records calls of ATen and custom ops that have no block in the registry.

In: an op, known by its schema only.  Out: a handler that records it: a pure op as an extern call;
one that writes as its pure form, whose results are then copied to what it writes; a write without
a pure form as a call on copies.  Invariant: what is recorded draws random numbers in program
order, and raises eager's error where a result does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.graph import values_in
from jitshape.ir.ops.externs import extern_types
from jitshape.ir.ops.families import check_written, preserved
from jitshape.ir.overlap import check_no_overlap

Handler = Callable[[Any, Any, tuple, dict[str, Any]], Any]
ON_COPIES = "jitshape.on_copies.default"


def resolve(func: Any) -> Handler:
    """How calls of `func`, which has no block, are recorded."""
    written = [argument for argument in func._schema.arguments if _is_write(argument)]
    view = _view_form(func)
    if view is not None:
        return partial(_copied_view, view)
    if not written:
        return extern
    if torch.Tag.inplace_view in func.tags:
        return _changed
    pure = pure_form(func)
    if pure is not None:
        return partial(_into, pure)
    returns = func._schema.returns
    return unsupported if any(r.alias_info is not None for r in returns) else _on_copies


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def pure_form(func: Any) -> Any:
    """The overload that computes what `func` writes, from the same arguments."""
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    namespace = func.namespace
    plain = name.removesuffix("_")
    for candidate in (name, plain, f"{plain}_functional"):
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        if namespace != "aten" or packet is None:
            continue
        wanted = {(a.name, str(a.type)) for a in schema.arguments if not a.is_out}
        for overload in packet.overloads():
            found = getattr(packet, overload)
            arguments = found._schema.arguments
            if any(_is_write(a) for a in arguments):
                continue
            if {(a.name, str(a.type)) for a in arguments} == wanted:
                return found
    return None


def _view_form(func: Any) -> Any:
    """The view that `func`, such as aten.t_copy, makes a copy of."""
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_copy"), None)
    if not name.endswith("_copy") or packet is None:
        return None
    return getattr(packet, func._schema.overload_name or "default", None)


# ---- pure ops


def _copied_view(view: Any, trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    with trace:
        seen = view(*args, **kwargs)
        if isinstance(seen, torch.Tensor):
            return seen.clone(memory_format=torch.contiguous_format)
        return [x.clone(memory_format=torch.contiguous_format) for x in seen]


def extern(trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Sizes as far as the arguments show them, the rest unbacked."""
    values = [trace.unwrap(a) for a in args]
    kwargs = {key: trace.unwrap(a) for key, a in kwargs.items()}
    trace.extern_unknown[str(func)] += 1
    if not func._schema.returns:
        trace.record(str(func), values, kwargs, ())
        return None
    _check_returns(func)
    types, single = extern_types(trace.env, func, values, kwargs, trace.in_backward)
    outs = trace.record(str(func), values, kwargs, types)
    if torch.Tag.nondeterministic_seeded in func.tags:
        trace.draw()
    tensors = [None if t is None else trace.wrap(out) for out, t in zip(outs, types)]
    if single:
        return tensors[0]
    return tensors if str(func._schema.returns[0].type).startswith("List") else tuple(tensors)


def _check_returns(func: Any) -> None:
    for returned in func._schema.returns:
        if "Tensor" not in str(returned.type):
            raise DataDependent(
                f"{func} gives a {returned.type}",
                because="it is computed from tensors that are unknown while tracing",
                avoid="an op that gives a tensor, such as torch.isclose(a, b).all()",
            )


# ---- ops that write


def _into(pure: Any, trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x.op_(...)` is x.copy_(op(x, ...)); `op(..., out=x)` is x.copy_(op(...)).  What a pure form
    gives is the op's own results, then what is written."""
    arguments = func._schema.arguments
    given = {a.name: x for a, x in zip(arguments, args)} | kwargs
    targets = [given[a.name] for a in arguments if _is_write(a)]
    outs = {a.name for a in arguments if a.is_out}
    if not outs:
        _check_operands(trace, targets, [x for a, x in zip(arguments, args) if not _is_write(a)])
    with trace:
        results = pure(**{name: x for name, x in given.items() if name not in outs})
        results = results if isinstance(results, (tuple, list)) else (results,)
        returned = [r for r in func._schema.returns if r.alias_info is None]
        for target, result in zip(_flat(targets), _flat(results[len(returned) :]), strict=True):
            _write(trace, func, target, result, bool(outs))
    if returned:
        return results[0] if len(returned) == 1 else tuple(results[: len(returned)])
    if not func._schema.returns:
        return None
    count = len(func._schema.returns)
    return targets[0] if count == 1 else tuple(targets[:count])


def _check_operands(trace: Any, targets: Sequence[Any], operands: Sequence[Any]) -> None:
    """Nothing is read that is written: what comes of it is known to ATen alone."""
    for target in values_in(list(map(trace.unwrap, targets))):
        for operand in values_in(list(map(trace.unwrap, operands))):
            check_no_overlap(trace.env, target, operand)


def _flat(tree: Sequence[Any]) -> list[Any]:
    return [x for item in tree for x in (item if isinstance(item, (tuple, list)) else (item,))]


def _write(trace: Any, func: Any, target: Any, result: Any, is_out: bool) -> None:
    if is_out and target.shape != result.shape:
        if target.numel() == 0 and target.dtype is result.dtype:
            show(trace, target, result)
            return
        raise DataDependent(
            f"{func} resizes its `out` argument",
            because="memory that changes its size cannot be followed through the graph",
            avoid="an `out` tensor of the result's shape",
        )
    if not is_out:
        check_written(trace.env, trace.unwrap(target).type, trace.unwrap(result).type)
    target.copy_(result)


def _on_copies(trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A write without a pure form: copies of what is written go in and come back as results."""
    arguments = func._schema.arguments
    rows = [*zip(arguments, args), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
    written = [place for place, (a, _) in enumerate(rows) if _is_write(a)]
    targets = [rows[place][1] for place in written]
    if not all(isinstance(target, torch.Tensor) for target in targets):
        return unsupported(trace, func, args, kwargs)
    values = [trace.unwrap(x) for _, x in rows]
    named = {a.name: x for (a, _), x in zip(rows[len(args) :], values[len(args) :])}
    types, single = [], False
    _check_returns(func)
    if func._schema.returns:
        types, single = extern_types(trace.env, func, values[: len(args)], named, trace.in_backward)
    copies = [preserved(trace.env, values[place]) for place in written]
    call = (str(func), written, list(named), values)
    outs = [trace.wrap(out) for out in trace.record(ON_COPIES, call, {}, [*types, *copies])]
    if torch.Tag.nondeterministic_seeded in func.tags:
        trace.draw()
    with trace:
        for target, result in zip(targets, outs[len(types) :], strict=True):
            target.copy_(result)
    if not types:
        return None
    return outs[0] if single else tuple(outs[: len(types)])


def unsupported(trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise DataDependent(
        f"{func} cannot be traced",
        because="it writes to its arguments in a way the graph has no form for",
        avoid="jitshape.disable round the function that calls it",
    )


# ---- ops that change what a tensor shows


def _changed(trace: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x.t_()` shows what `x.t()` does."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    with trace:
        return show(trace, args[0], getattr(torch.ops.aten, name)(*args, **kwargs))


def show(trace: Any, target: Any, seen: Any) -> Any:
    """`target` becomes what `seen` is.  An argument of the program gets its new geometry when the
    graph has run; it never gets other memory."""
    argument = trace.argument(target)
    if argument is not None and seen.value.storage is not target.value.storage:
        raise other_memory("an argument")
    if argument is not None and target.requires_grad:
        raise other_memory("an argument that requires grad")
    if seen.dtype is not target.dtype:
        raise other_memory("a tensor of another dtype")
    with trace:
        torch.Tensor.data.__set__(target, seen)  # type: ignore[attr-defined]
    target.value = seen.value
    trace.graph.moved.append(seen.value)
    if argument is not None:
        trace.graph.shown[argument.index] = seen.value
    return target


def other_memory(what: str) -> DataDependent:
    return DataDependent(
        f"{what} is given other memory",
        because="memory that is replaced cannot be followed through the graph",
        avoid="copy_ into the tensor, or do it outside the compiled function",
    )
