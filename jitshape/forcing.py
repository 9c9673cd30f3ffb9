"""JITSHAPE_FORCE=1: every frame below a compiled call goes through the machine.

In: frames that the hook sees while a compiled call runs: called by C, or by an instruction that a
break left to the interpreter.  Out: their results, by a compiled form of their own; what cannot be
compiled runs natively and is counted by its reason (`stats()["frames"]["native"]`).
Invariant: jitshape's own frames, those of torch and of the import system, and code that jitshape
made are the machinery, not the program: they run natively and are not counted.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from jitshape.frontend import _evalframe
from jitshape.frontend.emit import is_emitted
from jitshape.frontend.hook import call_unrouted
from jitshape.frontend.own_builtins import builtins_changed
from jitshape.frontend.positions import KEPT_FREE, Position, body_arguments, whole_body
from jitshape.frontend.resume import resume_code
from jitshape.observe import counters

_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
_OWN = f"{Path(__file__).parent}/"
_MACHINERY = (_OWN, *_INSTALLED, "<jitshape", "<frozen importlib")
_SUSPENDS = {
    inspect.CO_GENERATOR: "a generator that lives outside",
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    inspect.CO_ITERABLE_COROUTINE: "a coroutine",
}


def is_machinery(code: CodeType) -> bool:
    """Whether frames of this code are not the program's."""
    file = code.co_filename
    return is_emitted(code) or file.startswith(_MACHINERY)


def is_of_compiler(frame: FrameType) -> bool:
    """Whether this frame, which calls the one in question, is the compiler's at work."""
    file = frame.f_code.co_filename
    return file.startswith(_OWN) and file != __file__ and not is_emitted(frame.f_code)


def why_native(code: CodeType) -> str | None:
    """Why the frames of this code cannot be given to the machine."""
    for flag, reason in _SUSPENDS.items():
        if code.co_flags & flag:
            return reason
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "the body of a module" if code.co_name == "<module>" else "the body of a class"
    return None


class Force:
    """The route; `make(function)` gives the Compiler of a function.  One serves all functions
    that were made of the same code: their cells are its arguments."""

    def __init__(self, make: Callable[[FunctionType], Any]) -> None:
        self.make = make
        self.shared: dict[tuple[int, ...], Shared] = {}
        self.passing: dict[int, CodeType] = {}  # their next frame is the native run of one handled

    def round(self, call: Callable) -> FunctionType:
        """`call` with the route on while it runs."""

        def forced(*args: Any, **kwargs: Any) -> Any:
            _evalframe.push_route(self)
            try:
                return call(*args, **kwargs)
            finally:
                _evalframe.pop_route()

        return functools.wraps(call)(forced)

    def unseen(self, call: Callable) -> Callable:
        """`call`, a part of the compiler, with the route off while it runs."""

        def unseen(*args: Any) -> Any:
            return call_unrouted(call, *args)

        return unseen

    def __call__(self, code: CodeType, function: FunctionType) -> Any:
        if is_machinery(code):
            return None
        if self.passing.pop(id(code), None) is not None or is_of_compiler(sys._getframe(1)):
            return False
        reason = why_native(code)
        if builtins_changed():
            reason = "builtins"
        if sys.gettrace() is not None or sys.getprofile() is not None:
            reason = "sys.settrace or sys.setprofile is on"
        if reason is not None:
            counters.count_frame(reason)
            return False
        return self.run

    def run(self, function: FunctionType, slots: tuple[Any, ...]) -> Any:
        """The call that gives the result of the frame."""
        code = function.__code__
        kept = tuple(
            cell
            for cell, name in zip(function.__closure__ or (), code.co_freevars)
            if name == KEPT_FREE
        )
        key = (id(code), id(function.__globals__), *map(id, kept))
        shared = self.shared.get(key)
        if shared is None:
            body = whole_body(code)
            inner = FunctionType(
                resume_code(body), function.__globals__, code.co_name, None, kept or None
            )
            shared = self.shared[key] = Shared(self.make(inner), body, inner)
        dispatcher = shared.compiler.dispatcher
        arguments = body_arguments(shared.body, function, slots)
        found = dispatcher.find_entry(arguments)
        return shared.compiler.miss(dispatcher, arguments) if found is None else found

    def passes(self, code: CodeType) -> None:
        """The next frame of this code was counted already."""
        if _evalframe.hook_state()["installed"]:
            self.passing[id(code)] = code


@dataclass(frozen=True)
class Shared:
    """The Compiler of a code; what its key names by id is kept alive."""

    compiler: Any
    body: Position
    inner: FunctionType
