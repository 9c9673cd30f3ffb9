"""Calls, functions made in the program, super, imports."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from typing import Any

from jitshape.frontend.checks import Missing
from jitshape.frontend.frame import NULL, Frame
from jitshape.frontend.instructions import Instruction, Program
from jitshape.frontend.opcodes.registry import inst, name, raw
from jitshape.frontend.sources import Held, Key
from jitshape.frontend.values.base import Raised, Value, unpack_sized
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.sequences import TupleValue
from jitshape.frontend.values.unobserved import observed

_DEFAULTS, _KWDEFAULTS, _ANNOTATIONS, _CLOSURE = 1, 2, 4, 8


def call_shape(program: Program, instruction: Instruction) -> tuple[int, tuple[str, ...]]:
    """Number of arguments, and the names of the last ones that are keywords."""
    return instruction.arg, program.kwnames.get(instruction.index, ())


def perform(m: Any, frame: Frame, function: Any, args: list, names: tuple[str, ...]) -> Value:
    """Call with the last arguments as keywords; what runs inside may be resumed by itself."""
    kwargs: dict[str, Value] = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :]))
        del args[-len(names) :]
    return enter(m, frame, function, args, kwargs)


def enter(m: Any, frame: Frame, function: Any, args: list, kwargs: dict[str, Value]) -> Value:
    """What is not run by the machine itself looks at its arguments."""
    if not function.hands_on():
        args, kwargs = [*map(observed, args)], {k: observed(v) for k, v in kwargs.items()}
    frame.calling = function
    result = function.call(m, args, kwargs)
    frame.calling = None
    return result


@raw("CALL", until=(3, 13), arg=call_shape)
def call(m: Any, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    stack = frame.stack
    base = len(stack) - arg[0] - 2
    if stack[base] is NULL:
        function, args = stack[base + 1], stack[base + 2 :]
    else:
        function, args = stack[base], stack[base + 1 :]
    result = perform(m, frame, function, args, arg[1])
    stack[base:] = (result,)


@raw("CALL", since=(3, 13))
def call_313(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    base = len(stack) - arg - 2
    args = stack[base + 2 :] if stack[base + 1] is NULL else stack[base + 1 :]
    result = perform(m, frame, stack[base], args, ())
    stack[base:] = (result,)


@raw("CALL_KW", since=(3, 13))
def call_kw(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    base = len(stack) - arg - 3
    args = stack[base + 2 : -1] if stack[base + 1] is NULL else stack[base + 1 : -1]
    result = perform(m, frame, stack[base], args, stack[-1].constant())
    stack[base:] = (result,)


def null_first(program: Program, instruction: Instruction) -> tuple[bool, int]:
    """Whether keywords are given, and where the callable lies above the base."""
    return bool(instruction.arg & 1), 1


def null_second(program: Program, instruction: Instruction) -> tuple[bool, int]:
    return bool(instruction.arg & 1), 0


@raw("CALL_FUNCTION_EX", until=(3, 13), arg=null_first)
@raw("CALL_FUNCTION_EX", since=(3, 13), arg=null_second)
def call_function_ex(m: Any, frame: Frame, arg: tuple[bool, int]) -> None:
    stack = frame.stack
    base = len(stack) - 3 - arg[0]
    function = stack[base + arg[1]]
    kwargs = keyword_arguments(m, function, stack[-1]) if arg[0] else {}
    packed = stack[base + 2]
    if not m.iterable(packed):
        cls = packed.python_type().__name__
        shown = m.function_name(function)
        m.throw(TypeError, f"{shown} argument after * must be an iterable, not {cls}")
    exact = type(packed) is TupleValue and packed.is_exact()
    args = packed.handed_on() if exact else unpack_sized(m, packed)
    stack[base:] = (enter(m, frame, function, args, kwargs),)


def keyword_arguments(m: Any, function: Value, mapping: Value) -> dict[str, Value]:
    if not m.defines(mapping, "keys"):
        cls = mapping.python_type().__name__
        shown = m.function_name(function)
        m.throw(TypeError, f"{shown} argument after ** must be a mapping, not {cls}")
    kwargs = {}
    for key, value in handed_on_pairs(m, mapping):
        if not issubclass(key.python_type(), str):
            m.throw(TypeError, "keywords must be strings")
        kwargs[key.constant()] = value
    return kwargs


def handed_on_pairs(m: Any, mapping: Value) -> list[tuple[Value, Value]]:
    """Keys and values of a mapping, which the call need not look at."""
    exact = type(mapping) is DictValue and mapping.is_exact()
    return mapping.handed_on(m) if exact else m.pairs_of(mapping)


# ---- functions


@raw("MAKE_FUNCTION", until=(3, 13))
def make_function(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    flags = (_DEFAULTS, _KWDEFAULTS, _ANNOTATIONS, _CLOSURE)
    base = len(stack) - 1 - sum(1 for flag in flags if arg & flag)
    given = iter(stack[base:-1])
    parts = [next(given) if arg & flag else None for flag in flags]
    stack[base:] = (new_function(m, frame, stack[-1], parts),)


@raw("MAKE_FUNCTION", since=(3, 13))
def make_function_313(m: Any, frame: Frame, arg: int) -> None:
    frame.stack[-1] = new_function(m, frame, frame.stack[-1], [None] * 4)


@raw("SET_FUNCTION_ATTRIBUTE", since=(3, 13))
def set_function_attribute(m: Any, frame: Frame, arg: int) -> None:
    """[attribute, function] -> [function], made again: nothing else refers to it yet."""
    attribute, function = frame.stack[-2:]
    parts = [attribute if flag == arg else function.parts.get(n) for flag, n in _PARTS.items()]
    frame.stack[-2:] = (new_function(m, frame, m.const(function.code), parts),)


_PARTS = {
    _DEFAULTS: "__defaults__",
    _KWDEFAULTS: "__kwdefaults__",
    _ANNOTATIONS: "__annotations__",
    _CLOSURE: "__closure__",
}


def new_function(m: Any, frame: Frame, code: Value, parts: list[Value | None]) -> Value:
    body = code.constant()
    return m.build("function", body, frame.callee.globals, body.co_qualname, *parts)


# ---- classes


def super_name(program: Program, instruction: Instruction) -> tuple[str, int]:
    """Bit 0: a method call follows; bit 1: super() was called with two arguments."""
    return program.names[instruction.arg >> 2], instruction.arg & 3


@inst("LOAD_BUILD_CLASS")
def load_build_class(m: Any, arg: int) -> Value:
    return m.wrap(builtins.__build_class__)


@raw("LOAD_SUPER_ATTR", since=(3, 12), until=(3, 13), arg=super_name)
def load_super_attr_312(m: Any, frame: Frame, arg: tuple[str, int]) -> None:
    value = super_attribute(m, frame, arg)
    frame.stack[-3:] = (NULL, value) if arg[1] & 1 else (value,)


@raw("LOAD_SUPER_ATTR", since=(3, 13), arg=super_name)
def load_super_attr_313(m: Any, frame: Frame, arg: tuple[str, int]) -> None:
    value = super_attribute(m, frame, arg)
    frame.stack[-3:] = (value, NULL) if arg[1] & 1 else (value,)


def super_attribute(m: Any, frame: Frame, arg: tuple[str, int]) -> Value:
    """[super, class, self]: an attribute of `super(class, self)`, or of `super()`."""
    function, *args = frame.stack[-3:]
    proxy = function.call(m, args if arg[1] & 2 else [], {})
    return proxy.getattr(m, arg[0])


# ---- imports


@raw("IMPORT_NAME", arg=name)
def import_name(m: Any, frame: Frame, arg: str) -> None:
    level, names = frame.stack[-2].constant(), frame.stack[-1]
    full = arg
    if level:
        full = resolve_relative(m, frame, arg, level)
    if full not in sys.modules:
        m.stop("import", f"module {full} is imported for the first time")
    check_submodules(m, full, names.constant() or ())
    wants_leaf = names.python_type() is tuple and names.truth(m)
    if not wants_leaf and not level:
        full = full.partition(".")[0]
    frame.stack[-2:] = (loaded_module(m, full),)


def check_submodules(m: Any, full: str, names: tuple[str, ...]) -> None:
    """What `from package import name` names is imported too, unless the package has it."""
    found = vars(sys.modules[full])
    for name_ in names if "__path__" in found else ():
        if name_ not in found and f"{full}.{name_}" not in sys.modules:
            m.stop("import", f"module {full}.{name_} is imported for the first time")


def resolve_relative(m: Any, frame: Frame, name: str, level: int) -> str:
    package = m.find_global(frame.scope, "__package__")
    if package is None or not package.is_constant() or not package.constant():
        m.stop("import", "a relative import outside a package")
    return importlib.util.resolve_name("." * level + name, package.constant())


def loaded_module(m: Any, full: str) -> Value:
    return m.wrap(sys.modules[full], Key(Held(sys.modules, "sys.modules"), full))


@raw("IMPORT_FROM", arg=name)
def import_from(m: Any, frame: Frame, arg: str) -> None:
    """[module] -> [module, attribute]; a submodule not yet bound is found in sys.modules."""
    module = frame.stack[-1]
    try:
        value = module.getattr(m, arg)
    except Raised as raised:
        if not m.is_exception(raised, AttributeError):
            raise
        value = submodule(m, module, arg)
    frame.stack.append(value)


def submodule(m: Any, module: Value, name: str) -> Value:
    package = module.getattr(m, "__name__").constant()
    full = f"{package}.{name}"
    if full in sys.modules:
        return loaded_module(m, full)
    m.guard(Held(sys.modules, "sys.modules"), Missing(full))
    return m.stop("import", f"cannot import name {name!r} from {package!r}")
