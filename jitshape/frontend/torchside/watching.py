"""No code of the user's runs while torch is called for the trace.

In: a torch callable, before it runs on symbolic tensors.  Out: a Break at the call, where C++ is
about to call a Python function that is neither torch's nor the standard library's: a hook, a
method of a tensor subclass, a callback.  That function does not run.
Invariant: what is declared to run while tracing runs: functions of `allow_in_graph`, and custom
ops with what they registered.
"""

from __future__ import annotations

import importlib
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import torch

import jitshape
from jitshape.frontend import _evalframe
from jitshape.frontend.torchside import natives
from jitshape.frontend.values.base import Break

_TRUSTED = tuple(f"{Path(m.__file__).parent}/" for m in (torch, jitshape))
_STANDARD = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
# what ir/prover.py calls where C++ asks of sizes
_ALGEBRA = tuple(f"{path}{name}/" for path in _INSTALLED for name in ("sympy", "mpmath"))


def is_trusted(file: str) -> bool:
    """Whether code of this file may run while tracing."""
    if file.startswith((*_TRUSTED, *_ALGEBRA, "<")):
        return True
    return file.startswith(_STANDARD) and not file.startswith(_INSTALLED)


def _refuse(function: FunctionType, slots: tuple[Any, ...]) -> NoReturn:
    code = function.__code__
    raise Break(
        "user_code",
        f"torch calls {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) from C++",
        "jitshape.allow_in_graph for a pure function, or jitshape.disable round the call",
    )


# An import, and a look for a module without it.  Import hooks, the module's own code and what that
# calls run once in a process, whoever is the first to import it.
_IMPORTS = {importlib._bootstrap._find_and_load.__code__, importlib._bootstrap._find_spec.__code__}


def _import(function: FunctionType, slots: tuple[Any, ...]) -> Any:
    return function(*slots)


def _route(code: CodeType, function: FunctionType) -> Any:
    if code in _IMPORTS:
        return _import  # what a handler calls is not watched
    return None if is_trusted(code.co_filename) else _refuse


def _allow(code: CodeType, function: FunctionType) -> None:
    """Also inside of a call that is watched itself."""


def may_call_anything(function: Callable) -> bool:
    """Whether `function` is declared to run, with whatever it calls, while tracing."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    return natives.is_allowed(function)


def has_formula_of_users(results: Sequence[torch.Tensor], first: int) -> bool:
    """Whether backward from `results` would call a Python function that is not ours, in a node
    that autograd made since its count stood at `first`."""
    todo = [t.grad_fn for t in results]
    seen = set(todo)
    while todo:
        node: Any = todo.pop()
        if node is None or node._sequence_nr() < first:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            if not node._forward_cls.__module__.startswith("jitshape."):
                return True
        for behind, _ in node.next_functions:
            if behind not in seen:
                seen.add(behind)
                todo.append(behind)
    return False


@contextmanager
def watched(function: Callable) -> Iterator[None]:
    """Round a call of `function`."""
    if may_call_anything(function) and getattr(function, "namespace", "") == "aten":
        yield
        return
    _evalframe.push_route(_allow if may_call_anything(function) else _route)
    try:
        yield
    finally:
        _evalframe.pop_route()
