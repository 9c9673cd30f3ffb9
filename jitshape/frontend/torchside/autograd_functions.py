"""`torch.autograd.Function` of the user's.

In: `apply(*args)` of such a class.  Out: what its forward returns, run by the machine inside of a
real Function on symbolic tensors, so that autograd does the rest (tensors that are written or not
differentiable, results that are arguments, gradients of other shapes) as in eager; in backward
that Function has the machine run the user's formula.
Invariant: the context is an object of the trace; where the program would see a real one, the
graph ends before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import is_none, models
from jitshape.frontend.torchside.called_back import CalledBack
from jitshape.frontend.torchside.tensors import TensorValue, from_real
from jitshape.frontend.values.base import CLOCK, Break, Restart, Value
from jitshape.frontend.values.classes import ClassValue
from jitshape.frontend.values.sequences import TupleValue
from jitshape.frontend.values.storage import Storage
from jitshape.ir.symbolic_tensor import SymbolicTensor

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

_BASE = torch._C._FunctionBase
_MARKS = ("to_save", "dirty_tensors", "non_differentiable")  # what the context's methods set


class ContextValue(Storage):
    """`ctx`: attributes of the user's, and what the class of C keeps."""

    def __init__(self, cls: type, call: FunctionCall) -> None:
        self.cls = self.builtin = cls
        self.call_made: FunctionCall | None = call
        self.marks: dict[str, Value] = {}
        self.made_at = CLOCK.step()

    def __repr__(self) -> str:
        return f"ContextValue({self.cls.__qualname__})"

    def getattr(self, m: Machine, name: str) -> Value:
        m.guard_class(self.cls, name)
        if getattr(self.cls, name, None) is not getattr(_BASE, name, None):
            return m.default_getattr(self, name)
        if name == "needs_input_grad":
            return self._call().needs_gradient(m)
        if name == "saved_tensors":
            return self._call().saved(m)
        if name in _MARKS or name == "materialize_grads":
            raise Break("autograd", f"{name} of a context is read")
        return m.default_getattr(self, name)

    def setattr(self, m: Machine, name: str, value: Value) -> None:
        m.guard_class(self.cls, name)
        if getattr(self.cls, name, None) is not getattr(_BASE, name, None):
            raise Break("autograd", f"{name} of a context is set, which its class overrides")
        if name in _MARKS or name == "materialize_grads":
            m.mutated(self)
            self.marks[name] = value
        elif hasattr(_BASE, name):
            raise Break("autograd", f"{name} of a context is set")
        else:
            m.default_setattr(self, name, value)

    def _call(self) -> FunctionCall:
        if self.call_made is None:
            raise Break("autograd", "a context is used after its trace")
        return self.call_made

    def marked(self, name: str) -> list[Any]:
        """The tensors given to `save_for_backward` and such; None where None was given."""
        value = self.marks.get(name)
        if is_none(value):
            return []
        items = value.items if isinstance(value, TupleValue) else [value]
        if all(isinstance(item, TensorValue) or is_none(item) for item in items):
            return [item.tensor if isinstance(item, TensorValue) else None for item in items]
        raise Break("autograd", f"{name} of a context is no tuple of tensors")

    def children(self) -> Any:
        return () if self.instance_dict is None else self.instance_dict.children()


class FunctionCall(CalledBack):
    """One call of `apply`.  `forward(context)` gives the value returned, `formula()` the function
    that computes gradients."""

    def __init__(
        self,
        m: Machine,
        context_class: type,
        args: Sequence[Value],
        forward: Callable[[ContextValue], Value],
        formula: Callable[[], Value],
    ) -> None:
        name = context_class.__name__.removesuffix("Backward")
        super().__init__(m, f"the formula of {name}")
        self.name, self.args = context_class.__name__, list(args)
        self.forward_values, self.formula = forward, formula
        self.context = ContextValue(context_class, self)
        self.real: Any = None  # autograd's own context, while it calls
        self.is_single = False

    def close(self) -> None:
        vars(self.context).clear()
        super().close()

    def apply(self) -> Value:
        """Run forward."""
        m = self.machine
        if m.tracer.transforms:
            raise self.refuse("is needed in a transform of torch.func")
        tensors = [a.tensor for a in self.args if isinstance(a, TensorValue)]
        found = m.tracer.run(_Called.apply, [self, *tensors], {})
        return self.returned([r if isinstance(r, Value) else from_real(m, r) for r in found])

    # ---- called by autograd

    def forward(self, real: Any) -> tuple[Any, ...]:
        self.real = real
        items = self.results(self.forward_values(self.context))
        outputs = [item.tensor if isinstance(item, TensorValue) else item for item in items]
        given = {id(a.tensor) for a in self.args if isinstance(a, TensorValue)}
        for output in outputs:
            outside = isinstance(output, SymbolicTensor) and self._exists(output)
            if outside and id(output) not in given:
                raise self.refuse("returns a tensor that is none of its arguments")
        context = self.context
        real.save_for_backward(*context.marked("to_save"))
        real.mark_dirty(*context.marked("dirty_tensors"))
        real.mark_non_differentiable(*context.marked("non_differentiable"))
        materialize = context.marks.get("materialize_grads")
        if materialize is not None:
            real.set_materialize_grads(bool(materialize.constant()))
        self.real = None
        return tuple(outputs)

    def _exists(self, tensor: SymbolicTensor) -> bool:
        trace = self.machine.tracer.trace
        return trace.argument(tensor) is not None or any(tensor is leaf for leaf in trace.leaves)

    def backward(self, real: Any, gradients: Sequence[Any]) -> list[Any]:
        if self.probing:
            _ = real.saved_tensors
            tensors = (a.tensor for a in self.args if isinstance(a, TensorValue))
            return [torch.zeros_like(t) if t.requires_grad else None for t in tensors]
        m, self.real = self.machine, real
        values = [m.const(None) if g is None else from_real(m, g) for g in gradients]
        try:
            given = self.tangents(values)
            result = self.run(lambda: m.call(self.formula(), [self.context, *given], {}))
        finally:
            self.real = None
        found = self._checked(self.gradients(result))
        self.check_dependence(gradients, found)
        return found

    def _checked(self, items: list[Value]) -> list[Any]:
        """The gradients of the tensors among the arguments; errors are eager's to raise."""
        extra = items[len(self.args) :]
        wrong = len(items) < len(self.args) or not all(map(is_none, extra))
        found: list[Any] = []
        for argument, item in zip(self.args, items):
            is_tensor = isinstance(item, TensorValue)
            if isinstance(argument, TensorValue):
                found.append(item.tensor if is_tensor else None)
                wrong = wrong or not (is_tensor or is_none(item))
            else:
                wrong = wrong or not is_none(item)
        if wrong:
            self.stop("gives other gradients than one for each tensor")
        return found

    def stop(self, reason: str) -> None:
        """End the graph before the call of `apply`."""
        if self.machine.changed_late is None:
            raise self.refuse(reason)
        raise Restart(self.step, self.refuse(reason))

    # ---- how the program sees what autograd has in one row each

    def results(self, returned: Value) -> list[Value]:
        """What forward returned."""
        self.is_single = not isinstance(returned, TupleValue)
        return list(returned.items) if isinstance(returned, TupleValue) else [returned]

    def returned(self, results: list[Value]) -> Value:
        """What the call returns."""
        return results[0] if self.is_single else self.machine.new_tuple(results)

    def tangents(self, values: list[Value]) -> list[Value]:
        """What the formula is given."""
        return values

    def gradients(self, result: Value) -> list[Value]:
        """What the formula gave."""
        return list(result.items) if isinstance(result, TupleValue) else [result]

    def flags(self, values: list[Value]) -> Value:
        """`needs_input_grad`."""
        return self.machine.new_tuple(values)

    # ---- what the context tells

    def needs_gradient(self, m: Machine) -> Value:
        if self.real is None:
            raise self.refuse("reads needs_input_grad at another time")
        flags = iter(self.real.needs_input_grad[1:])
        tensors = [isinstance(a, TensorValue) for a in self.args]
        return self.flags([m.const(bool(is_tensor and next(flags))) for is_tensor in tensors])

    def saved(self, m: Machine) -> Value:
        if self.real is None:
            raise self.refuse("reads saved tensors at another time")
        try:
            tensors = self.real.saved_tensors
        except RuntimeError as error:
            raise self.refuse(f"raises {error} in backward") from None
        return m.new_tuple([m.const(None) if t is None else from_real(m, t) for t in tensors])


class _Called(torch.autograd.Function):
    """What autograd calls."""

    @staticmethod
    def forward(ctx: Any, call: FunctionCall, *tensors: Any) -> tuple[Any, ...]:
        ctx.call = call
        return call.forward(ctx)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return (None, *ctx.call.backward(ctx, gradients))


_NODE: type = _Called._backward_cls


def called_by(node: Any) -> FunctionCall | None:
    """The call whose node of autograd's graph this is."""
    return node.call if isinstance(node, _NODE) else None


def function_behind(result: Any) -> FunctionCall | None:
    """The call of a Function that a view comes out of as one of what it was given: its gradient
    must go through the formula, not past it to the tensor that it views."""
    end = None if result._base is None else result._base.grad_fn
    node = result.grad_fn
    while node is not None and node is not end:
        call = called_by(node)
        if call is not None:
            return call
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return None


@models(vars(_BASE)["apply"])
def apply(m: Machine, cls: Value, *args: Value) -> Value:
    """`super().apply(*args)` in torch.autograd.Function."""
    assert isinstance(cls, ClassValue)
    real = cls.object
    for name in ("_backward_cls", "vjp", "boxed_grads_call"):
        m.type_lookup(real, name)
    m.guard_class(torch.autograd.function._SingleLevelFunction, "apply")
    if not hasattr(real, "_backward_cls") or real.vjp is not torch.autograd.Function.vjp:
        raise Break("autograd", f"{real.__name__} overrides vjp, or is no Function")
    if getattr(real, "boxed_grads_call", False):
        raise Break("autograd", f"{real.__name__} takes its gradients in a list")
    separate = real.setup_context is not torch.autograd.Function.setup_context

    def forward(context: ContextValue) -> Value:
        function = cls.getattr(m, "forward")
        setup = cls.getattr(m, "setup_context")
        if not separate:
            return m.call(function, [context, *args], {})
        result = m.call(function, list(args), {})
        m.call(setup, [context, m.new_tuple(list(args)), result], {})
        return result

    for name in ("apply", *_MARKS, "saved_tensors"):  # what C++ calls and reads
        m.guard_class(real._backward_cls, name)
    call = FunctionCall(m, real._backward_cls, args, forward, lambda: cls.getattr(m, "backward"))
    return call.apply()
