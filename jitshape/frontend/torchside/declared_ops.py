"""Ops of torch.library.custom_op that have a formula for autograd.

In: a call of such an op.  Out: its results; what the user registered, set-up and formula, is run by
the machine as that of a Function (autograd_functions.py).
Invariant: set-up and formula see arguments, gradients and flags as torch shows them: arguments in
the order of the schema with defaults filled in, lists of tensors as lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS

from jitshape.frontend.builtins_.registry import is_none
from jitshape.frontend.sources import Held, InstanceDict, Key
from jitshape.frontend.torchside.autograd_functions import ContextValue, FunctionCall
from jitshape.frontend.torchside.tensors import DECLARED_OPS, TensorValue, call_native, from_real
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.sequences import ListValue, SequenceValue, TupleValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

Lengths = list[int | None]  # of a row of values: None for one that is no list of tensors


class OpCall(FunctionCall):
    """One call; autograd has the lists of tensors among arguments and results in one row."""

    def __init__(
        self,
        m: Machine,
        context_class: type,
        args: Sequence[Value],
        forward: Callable[[ContextValue], Value],
        formula: Callable[[], Value],
    ) -> None:
        self.argument_lengths = _lengths(args)
        self.result_lengths: Lengths = []
        super().__init__(m, context_class, _flat(args), forward, formula)

    def results(self, returned: Value) -> list[Value]:
        items = super().results(returned)
        self.result_lengths = _lengths(items)
        return _flat(items)

    def returned(self, results: list[Value]) -> Value:
        return super().returned(_nested(self.machine, results, self.result_lengths))

    def tangents(self, values: list[Value]) -> list[Value]:
        return _nested(self.machine, values, self.result_lengths)

    def gradients(self, result: Value) -> list[Value]:
        items = super().gradients(result)
        if self.argument_lengths.count(None) == len(self.argument_lengths):
            return items
        found: list[Value] = []
        if len(items) != len(self.argument_lengths):
            self.stop("gives other gradients than one for each argument")
        for item, length in zip(items, self.argument_lengths):
            if length is None:
                found.append(item)
            elif isinstance(item, ListValue) and len(item.items) == length:
                found.extend(item.items)
            else:
                self.stop("gives no list of gradients for a list of tensors")
        return found

    def flags(self, values: list[Value]) -> Value:
        return super().flags(_nested(self.machine, values, self.argument_lengths))


def _lengths(values: Sequence[Value]) -> Lengths:
    return [len(value.items) if _is_list(value) else None for value in values]  # type: ignore[attr-defined]


def _is_list(value: Value) -> bool:
    """Whether torch takes it apart: a list of nothing but tensors."""
    return isinstance(value, ListValue) and all(isinstance(x, TensorValue) for x in value.items)


def _flat(values: Sequence[Value]) -> list[Value]:
    return [x for value in values for x in (value.items if _is_list(value) else [value])]  # type: ignore[attr-defined]


def _nested(m: Machine, flat: Sequence[Value], lengths: Lengths) -> list[Value]:
    rest = iter(flat)
    return [
        next(rest) if length is None else m.new_list([next(rest) for _ in range(length)])
        for length in lengths
    ]


# ---- the call


def call_declared(
    m: Machine, op: torch._ops.OpOverload, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """A call of an op that has a formula, where autograd looks; None: it needs none."""
    definition = OPDEFS.get(op._name.removesuffix(".default"))
    if definition is None or not torch.is_grad_enabled():
        return None
    held = InstanceDict(Held(definition, str(op)))
    formula = m.wrap(definition._backward_fn, Key(held, "_backward_fn"))
    given = _bound(m, op, args, kwargs)
    if is_none(formula) or given is None or not any(map(_requires_grad, _flat(given))):
        return None
    setup = m.wrap(definition._setup_context_fn, Key(held, "_setup_context_fn"))
    parameters = op._schema.arguments
    named = {p.name: kwargs[p.name] for p in parameters if p.kwarg_only and p.name in kwargs}

    def forward(context: ContextValue) -> Value:
        result = call_native(m, op, given, named)
        if not is_none(setup):
            m.call(setup, [], _shown(m, parameters, given, named, context, result))
        return result

    name = f"GeneratedBackwardFor_{op._namespace}_{op._opname}_{op._overloadname}"
    base = torch.autograd.function.BackwardCFunction
    context_class = _context_classes.setdefault(op, type(name, (base,), {}))
    return OpCall(m, context_class, given, forward, lambda: formula).apply()


DECLARED_OPS.append(call_declared)
_context_classes: dict[Any, type] = {}


def _requires_grad(value: Value) -> bool:
    if isinstance(value, SequenceValue) and any(map(_requires_grad, value.items)):
        raise Break("autograd", "an op has a formula, and a list of tensors and None")
    return isinstance(value, TensorValue) and value.tensor.requires_grad


def _bound(
    m: Machine, op: torch._ops.OpOverload, args: list[Value], kwargs: dict[str, Value]
) -> list[Value] | None:
    """The arguments that are not by name only, without what stands at the end as by default;
    None: the call does not fit the schema, of which torch will complain."""
    parameters = op._schema.arguments
    positional = [p for p in parameters if not p.kwarg_only]
    if len(args) > len(positional) or not {p.name for p in parameters}.issuperset(kwargs):
        return None
    found: list[Value] = []
    for place, parameter in enumerate(positional):
        if place < len(args):
            value = args[place]
        elif parameter.name in kwargs:
            value = kwargs[parameter.name]
        elif parameter.has_default_value():
            value = from_real(m, parameter.default_value)
        else:
            return None
        is_list = isinstance(value, TupleValue) and "List[" in str(parameter.type)
        found.append(m.new_list(list(value.items)) if is_list else value)  # type: ignore[attr-defined]
    while found and _is_default(found[-1], positional[len(found) - 1]):
        found.pop()
    return found


def _is_default(value: Value, parameter: Any) -> bool:
    if not parameter.has_default_value() or not value.is_constant():
        return False
    default = parameter.default_value
    return type(value.constant()) is type(default) and value.constant() == default


def _shown(
    m: Machine,
    parameters: Sequence[Any],
    given: list[Value],
    named: dict[str, Value],
    context: ContextValue,
    result: Value,
) -> dict[str, Value]:
    """What the set-up is called with."""

    def filled(parameter: Any, value: Value | None) -> Value:
        return from_real(m, parameter.default_value) if value is None else value

    places = [p for p in parameters if not p.kwarg_only]
    rest: list[Value | None] = [None] * (len(places) - len(given))
    inputs = m.new_tuple([filled(p, v) for p, v in zip(places, [*given, *rest])])
    shown = {"ctx": context, "inputs": inputs, "output": result}
    by_name = [p for p in parameters if p.kwarg_only]
    if by_name:
        pairs = [(m.const(p.name), filled(p, named.get(p.name))) for p in by_name]
        shown["keyword_only_inputs"] = m.new_dict(pairs)
    return shown
