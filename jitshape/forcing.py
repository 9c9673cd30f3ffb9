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
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from jitshape.frontend import _evalframe
from jitshape.frontend.emit import is_emitted
from jitshape.observe import counters

_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
_MACHINERY = (f"{Path(__file__).parent}/", *_INSTALLED)
_SUSPENDS = {
    inspect.CO_GENERATOR: "a generator that lives outside",
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    inspect.CO_ITERABLE_COROUTINE: "a coroutine",
}
ANEW_LIMIT = 16  # so often are functions of one code compiled that each call makes anew


def is_machinery(code: CodeType) -> bool:
    """Whether frames of this code are not the program's."""
    file = code.co_filename
    return is_emitted(code) or file.startswith(_MACHINERY) or file.startswith("<frozen importlib")


def why_native(code: CodeType) -> str | None:
    """Why the frames of this code cannot be given to the machine."""
    for flag, reason in _SUSPENDS.items():
        if code.co_flags & flag:
            return reason
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "the body of a module" if code.co_name == "<module>" else "the body of a class"
    return None


def _ignore(code: CodeType, function: FunctionType) -> None:
    return None


class Force:
    """The route; `make(function)` gives the Compiler of a function."""

    def __init__(self, make: Callable[[FunctionType], Any]) -> None:
        self.make = make
        self.compilers: weakref.WeakKeyDictionary[FunctionType, Any] = weakref.WeakKeyDictionary()
        self.anew: dict[CodeType, int] = {}
        self.passing: set[CodeType] = set()  # their next frame is the native run of one handled

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
            _evalframe.push_route(_ignore)
            try:
                return call(*args)
            finally:
                _evalframe.pop_route()

        return unseen

    def __call__(self, code: CodeType, function: FunctionType) -> Any:
        if is_machinery(code):
            return None
        if code in self.passing:
            self.passing.discard(code)
            return False
        reason = why_native(code) or self._why_not_now(code)
        if reason is not None:
            counters.count_frame(reason)
            return False
        return self.run

    def _why_not_now(self, code: CodeType) -> str | None:
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return "sys.settrace or sys.setprofile is on"
        if self.anew.get(code, 0) >= ANEW_LIMIT:
            return "a function that is made anew too often"
        return None

    def run(self, function: FunctionType, slots: tuple[Any, ...]) -> Any:
        """The call that gives the result of the frame."""
        compiler = self.compilers.get(function)
        if compiler is None:
            compiler = self.make(function)
            if "<locals>" in function.__qualname__:
                self.anew[function.__code__] = self.anew.get(function.__code__, 0) + 1
            else:
                self.compilers[function] = compiler
        found = compiler.dispatcher.find_entry(slots)
        if found is None:
            found = compiler.miss(compiler.dispatcher, slots)
        return found

    def passes(self, code: CodeType) -> None:
        """The next frame of this code was counted already."""
        if _evalframe.hook_state()["installed"]:
            self.passing.add(code)
