"""What the functions of torch that run natively name: a trace reads it through them.

In: a Python function of torch's whose code the machine does not run (`F.layer_norm`), or an
operator that a tensor's class has such a function for.  Out: guards on the globals that its code
names, on what it reads of modules, on the methods of tensors among its attributes, and on the same
of every function of torch's that these lead to; and whether one of them is not torch's own, so that
the machine has to run the code after all.
Invariant: a replacement of any of them (`torch.layer_norm = ...`) is a miss; nothing is called or
imported to find out.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.lookup import MISSING, class_attribute
from jitshape.frontend.sources import Field, Held
from jitshape.frontend.torchside import natives
from jitshape.frontend.torchside.watching import is_trusted
from jitshape.frontend.values.functions import guard_part
from jitshape.frontend.values.objects import ModuleValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

_READS = ("LOAD_ATTR", "LOAD_METHOD")
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_HOMES = ("torch", "typing", "functools", "builtins")
_FUNCTION_MODES = "torch.overrides"  # asked only about subclasses, which are breaks


def guard_names(m: Machine, function: Any) -> bool:
    """What `function` names must go on being what it is, if it is Python code of torch's.  Returns
    whether all of it is torch's own."""
    known = m.tracer.named_inside
    if function not in known:
        known[function] = _guard_behind(m, function)
    return known[function]


def _guard_behind(m: Machine, start: Any) -> bool:
    todo, seen, own = list(_behind_operator(start)) or [start], set(), True
    while todo:
        function = todo.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if _runs_natively(function):
            for part in _PARTS:
                guard_part(m, function, Field(Held(function, function.__qualname__), part))
            todo += [cell.cell_contents for cell in function.__closure__ or ()]
            todo += _named(m, function)
        elif function is not start:
            own = own and not is_foreign(function)
    return own


def _runs_natively(function: Any) -> bool:
    """Not functions of the program's, which are refused or declared to be pure."""
    if not isinstance(function, types.FunctionType) or function.__module__ == _FUNCTION_MODES:
        return False
    return natives.policy(function) == "native" and not natives.is_allowed(function)


def is_foreign(found: Any) -> bool:
    """Whether this was put in the place of something of torch's."""
    if isinstance(found, types.FunctionType):
        return not is_trusted(found.__code__.co_filename)
    if isinstance(found, (type, types.ModuleType, types.BuiltinFunctionType, *_DESCRIPTORS)):
        return False
    return callable(found) and type(found).__module__.partition(".")[0] not in _HOMES


def _behind_operator(function: Any) -> Iterator[Any]:
    """The methods of tensors that `operator.pow` and its like call, if they are Python code."""
    if isinstance(function, types.BuiltinFunctionType) and function.__module__ == "_operator":
        stem = function.__name__.strip("_")
        for name in (f"__{stem}__", f"__r{stem}__"):
            method = vars(torch.Tensor).get(name)
            if isinstance(method, types.FunctionType):
                yield method


def _named(m: Machine, function: types.FunctionType) -> Iterator[Any]:
    """The objects that its code names, each guarded."""
    names, methods = names_of(function.__code__)
    namespace = m.namespace(m.scope(function.__globals__))
    for name, *attributes in names:
        if name not in function.__globals__:  # of builtins
            continue
        found = namespace.get_named(m, name)
        for attribute in attributes:
            if not isinstance(found, ModuleValue):
                break
            found = _read(m, found, attribute)
        yield getattr(found, "function", None) or getattr(found, "object", None)
    for name in methods:
        if hasattr(torch.Tensor, name):
            m.guard_class(torch.Tensor, name)
            yield getattr(torch.Tensor, name)


def _read(m: Machine, module: ModuleValue, name: str) -> Any:
    """What a module holds, and what its class does, which comes first or in its place."""
    cls = type(module.object)
    for special in (name, "__getattribute__", "__getattr__"):
        m.guard_class(cls, special)
    held = class_attribute(cls, name)
    if held is not MISSING:
        m.guard_class(type(held), "__get__")
    return module.attributes(m).get_named(m, name)


@functools.cache
def names_of(code: types.CodeType) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """(the globals that `code` reads, each with the attributes that it reads one of the other;
    the attributes that it reads of anything else), nested code included."""
    paths: dict[tuple[str, ...], None] = {}
    others: dict[str, None] = {}
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            path = (instruction.argval,)
        elif instruction.opname in _READS:
            if not path:
                others[instruction.argval] = None
                continue
            path = (*path, instruction.argval)
        else:
            path = ()
            continue
        paths[path] = None
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner, methods = names_of(const)
            paths.update(dict.fromkeys(inner))
            others.update(dict.fromkeys(methods))
    longest = [p for p in paths if not any(q[:-1] == p for q in paths)]
    return tuple(longest), tuple(others)
