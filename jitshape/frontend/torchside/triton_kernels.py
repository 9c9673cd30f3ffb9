"""Triton kernels of the user's: each launch is an op of the graph that says what it writes.

In: `kernel[grid](...)` where the kernel is a plain one (an autotuned one is left to the
interpreter).  Out: a node of an op that launches it; tensors and numbers are its arguments,
constants of the kernel and launch options belong to the op.
Invariant: a tensor that the kernel may write is declared written; autograd does not see a launch,
as in eager execution.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.torchside.numbers import SymbolicNumber
from jitshape.frontend.torchside.tensors import TensorValue, call_native
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.functions import literal
from jitshape.frontend.values.objects import ObjectValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

KINDS = {"triton.runtime.jit": "JITFunction", "triton.runtime.interpreter": "InterpretedFunction"}
WRITERS = ("store", "atomic_", "experimental_", "inline_asm", "async_", "descriptor")
PLAIN = ("range", "min", "max", "len", "abs", "int", "float")


def is_kernel(real: Any) -> bool:
    cls = type(real)
    return KINDS.get(cls.__module__) == cls.__name__


class Kernel(ObjectValue):
    """A kernel, guarded by identity."""

    def getitem(self, m: Machine, key: Value) -> Value:
        return Launch(self, key)


class Launch(Value):
    """`kernel[grid]`."""

    def __init__(self, kernel: Kernel, grid: Value) -> None:
        self.kernel, self.grid = kernel, grid

    def python_type(self) -> type:
        return functools.partial

    def children(self) -> Iterable[Value]:
        return (self.kernel, self.grid)

    def reconstruct(self, e: Any) -> None:
        e.value(self.kernel)
        e.value(self.grid)
        e.op("BINARY_SUBSCR")

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kernel = self.kernel.object
        parameters = inspect.signature(kernel.fn).parameters
        given = {**dict(zip(parameters, args)), **kwargs}
        for name, parameter in parameters.items():
            if name not in given:
                if parameter.default is parameter.empty:
                    raise Break("triton_kernel", f"a launch without the argument {name}")
                given[name] = m.const(parameter.default)
        passed, kinds, constants = [], [], []
        for name, value in given.items():
            kind = "constant" if is_constexpr(parameters.get(name)) else kind_of(value)
            if kind == "constant":
                constants.append((name, constant_of(m, name, value)))
            else:
                passed.append(value)
                kinds.append((name, kind))
        grid = self._sizes(m, given)
        layout = Layout(kernel, tuple(kinds), tuple(constants), len(grid))
        call_native(m, launch_op(layout), [*passed, *grid])
        return m.const(None)

    def _sizes(self, m: Machine, given: dict[str, Value]) -> list[Value]:
        """The grid; a function makes it of the arguments."""
        grid = self.grid
        if not issubclass(grid.python_type(), (tuple, list, int)):
            meta = m.new_dict([(m.const(name), value) for name, value in given.items()])
            grid = m.call(grid, [meta], {})
        return [grid] if issubclass(grid.python_type(), int) else m.items_of(grid)


def kind_of(value: Value) -> str:
    """The type of an argument in the schema of the op."""
    if isinstance(value, TensorValue):
        return "Tensor"
    if isinstance(value, SymbolicNumber) or type(constant_or_none(value)) in (int, float):
        return "SymInt" if value.python_type() is int else "float"
    return "constant"


def constant_or_none(value: Value) -> Any:
    return value.constant() if value.is_constant() else None


def constant_of(m: Machine, name: str, value: Value) -> Any:
    value = literal(m, value)
    if not value.is_constant():
        raise Break("triton_kernel", f"{name} is a {value.python_type().__name__}")
    return value.constant()


def is_constexpr(parameter: inspect.Parameter | None) -> bool:
    """Also for launch options, which are no parameters."""
    return parameter is None or "constexpr" in str(parameter.annotation)


# ---- what a kernel writes


def written(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters that may reach a write; None: all may."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    (definition,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    of = {a.arg: {a.arg} for a in ast.walk(definition) if isinstance(a, ast.arg)}
    found: set[str] = set()
    while True:
        before = sum(map(len, of.values())), len(found)
        for node in ast.walk(definition):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
                _flow(node, of)
            elif isinstance(node, ast.Call):
                for place in _places_written(node):
                    found |= _origins(place, of)
        if (sum(map(len, of.values())), len(found)) == before:
            return frozenset(found)


def _flow(node: Any, of: dict[str, set[str]]) -> None:
    """What is assigned may point where the value points."""
    origins = _origins(node.iter if isinstance(node, ast.For) else node.value, of)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                of.setdefault(name.id, set()).update(origins)


def _origins(node: ast.AST | None, of: dict[str, set[str]]) -> set[str]:
    names = () if node is None else (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    return set().union(*(of.get(name, ()) for name in names))


def _places_written(call: ast.Call) -> list[ast.AST]:
    """What a call may write through: of Triton's functions what they store to, of others all."""
    function = call.func
    if isinstance(function, ast.Attribute):
        if not function.attr.startswith(WRITERS):
            return []
        if function.attr == "store" or function.attr.startswith("atomic_"):
            by_name = [k.value for k in call.keywords if k.arg == "pointer"]
            return [function.value, *call.args[:1], *by_name]
    elif isinstance(function, ast.Name) and function.id in PLAIN:
        return []
    return [call]


# ---- the op


@dataclass(frozen=True, eq=False)
class Layout:
    """What tells launches of one kernel apart: they are ops of their own."""

    kernel: Any
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    rank: int

    @property
    def key(self) -> tuple:
        constants = tuple((name, type(value), value) for name, value in self.constants)
        return id(self.kernel), self.arguments, constants, self.rank

    def schema(self, name: str) -> str:
        writes = written(self.kernel.fn)
        texts = []
        for i, (argument, kind) in enumerate(self.arguments):
            may_write = kind == "Tensor" and (writes is None or argument in writes)
            texts.append(f"Tensor(a{i}!) p{i}" if may_write else f"{kind} p{i}")
        texts.extend(f"SymInt grid{i}" for i in range(self.rank))
        return f"{name}({', '.join(texts)}) -> ()"

    def launch(self, *args: Any) -> None:
        count = len(args) - self.rank
        named = {name: value for (name, _), value in zip(self.arguments, args)}
        self.kernel[tuple(args[count:])](**named, **dict(self.constants))


_numbers = itertools.count()
_ops: dict[tuple, tuple[Callable[..., Any], Layout]] = {}


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("jitshape_kernels", "DEF")


def launch_op(layout: Layout) -> Callable[..., Any]:
    """Calls the op of these launches, past autograd."""
    if layout.key not in _ops:
        name = f"{layout.kernel.fn.__name__}_{next(_numbers)}"
        _library().define(layout.schema(name))
        _library().impl(name, layout.launch, "CompositeExplicitAutograd")
        _library().impl(name, lambda *args: None, "Meta")
        op = getattr(torch.ops.jitshape_kernels, name).default
        _ops[layout.key] = functools.partial(_below_autograd, op), layout
    return _ops[layout.key][0]


def _below_autograd(op: Any, *args: Any) -> None:
    with torch._C._AutoDispatchBelowAutograd():
        op(*args)
