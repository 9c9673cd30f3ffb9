"""What code that backward calls reads of the program's data.

In: each instruction of such code before the machine executes it.  Out: what it is about to read
that the program may have changed when backward runs: globals, cells, attributes, contents of
containers.  Functions, classes and modules are none: programs do not exchange their code between a
call and its backward.  Nor is what the trace made, or what torch's own code and the standard
library read of themselves.
"""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from jitshape.frontend import _evalframe
from jitshape.frontend.frame import Frame
from jitshape.frontend.lookup import MISSING
from jitshape.frontend.values.base import Value
from jitshape.frontend.values.classes import ClassValue
from jitshape.frontend.values.functions import FunctionValue
from jitshape.frontend.values.objects import ModuleValue
from jitshape.frontend.values.sequences import TupleValue
from jitshape.frontend.values.storage import Storage, real_instance_dict

_CODE = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
    *(property, staticmethod, classmethod, functools.cached_property),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace),
    *(torch._ops._Ops, torch.library.CustomOpDef, _evalframe.Dispatcher),
)
_LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "jitshape"}
# How many operands at the top of the stack the instruction looks into.
_OPERANDS = {
    "BINARY_SUBSCR": 2,
    "BINARY_SLICE": 3,
    "BINARY_OP": 2,
    "COMPARE_OP": 2,
    "CONTAINS_OP": 2,
    "GET_ITER": 1,
    "UNPACK_SEQUENCE": 1,
    "UNPACK_EX": 1,
    "LIST_EXTEND": 1,
    "SET_UPDATE": 1,
    "DICT_UPDATE": 1,
    "DICT_MERGE": 1,
    "TO_BOOL": 1,
    "UNARY_NOT": 1,
    "CALL_FUNCTION_EX": 3,
}


def late_read(frame: Frame) -> str | None:
    """What the instruction that `frame` is at reads, if it is data of the program's."""
    if _is_library(frame.scope.globals.get("__name__")):
        return None
    instruction = frame.program.instructions[frame.index]
    name = instruction.opname
    if name in _READS:
        steps = frame.program.steps
        assert steps is not None
        arg = steps[frame.index][1]
        return _READS[name](frame, arg[0] if isinstance(arg, tuple) else arg)
    count = instruction.arg + 2 if name in ("CALL", "CALL_KW") else _OPERANDS.get(name, 0)
    if name.startswith("POP_JUMP"):
        count = 1
    for operand in frame.stack[-count:] if count else ():
        if _is_container(operand):
            return _content(operand)
    return None


def _is_library(name: Any) -> bool:
    return type(name) is str and name.partition(".")[0] in _LIBRARIES


def _is_code(object: Any) -> bool:
    return isinstance(object, _CODE)


def _is_container(value: Any) -> bool:
    """A container that exists outside and can be written."""
    return (
        isinstance(value, Storage)
        and value.object is not None
        and not isinstance(value, TupleValue)
        and type(value.object) is not frozenset
        and hasattr(type(value.object), "__len__")
    )


def _content(container: Value) -> str:
    return f"what a {container.python_type().__name__} holds"


def _global(frame: Frame, name: str) -> str | None:
    found = frame.scope.globals.get(name, MISSING)
    if found is MISSING and hasattr(builtins, name):
        return None
    return None if _is_code(found) else f"the global {name}"


def _cell(frame: Frame, slot: int) -> str | None:
    cell: Any = frame.slots[slot]
    if cell.real is None:
        return None
    try:
        content = cell.real.cell_contents
    except ValueError:
        return None
    return None if _is_code(content) else f"the variable {frame.program.slot_names[slot]}"


def _attribute(frame: Frame, name: str) -> str | None:
    owner: Any = frame.stack[-1]
    real = getattr(owner, "object", None)
    if real is None or not isinstance(owner, Storage | ClassValue | ModuleValue | FunctionValue):
        return None
    if isinstance(owner, ModuleValue):
        own = types.ModuleType.__getattribute__(real, "__dict__")
        found = own.get(name) if not _is_library(own.get("__name__")) else torch
    elif isinstance(owner, ClassValue):
        found = torch if issubclass(real, enum.Enum) else _of_class(real, name)
    elif type(real) in (tuple, frozenset):
        return None
    else:
        own = {} if type(real).__dictoffset__ == 0 else real_instance_dict(real)
        found = own[name] if name in own else _of_class(type(real), name)
        if type(found) in (types.MemberDescriptorType, types.GetSetDescriptorType):
            found = None  # what a slot holds
    if _is_container(owner):
        return _content(owner)
    return None if _is_code(found) else f"the attribute {name} of {owner.python_type().__name__}"


def _of_class(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


_READS: dict[str, Callable[[Frame, Any], str | None]] = {
    "LOAD_GLOBAL": _global,
    "LOAD_DEREF": _cell,
    "LOAD_ATTR": _attribute,
    "LOAD_METHOD": _attribute,
}
