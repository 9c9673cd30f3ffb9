"""The frame hook from Python: sees frames that nobody called through jitshape.

In: a route, asked with (code, function) before each new frame of this thread runs.  Out: see
Route.  `watch` is the route put round a trace: user code that C++ calls meanwhile (tensor hooks,
autograd functions, sort keys) runs natively, and is reported.
Invariant: the interpreter's evaluation function is ours only inside these context managers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from jitshape import forks
from jitshape.frontend import _evalframe

Handler = Callable[[FunctionType, tuple], Any]
# None: run natively, and never ask about this code again; False: run natively this time; a code
# object with the same parameters: run that in the same frame; a handler: its result is the call's.
Answer = None | bool | CodeType | Handler
Route = Callable[[CodeType, FunctionType], Answer]


forks.in_children(_evalframe.forget_other_threads)


@contextmanager
def routed(route: Route) -> Iterator[None]:
    """Route this thread's new frames; inside another `routed`, instead of it."""
    _evalframe.push_route(route)
    try:
        yield
    finally:
        _evalframe.pop_route()


def _ignore(code: CodeType, function: FunctionType) -> None:
    return None


def call_unrouted(call: Callable[..., Any], *args: Any) -> Any:
    """`call(*args)`, a part of the compiler: its frames are not the program's.  No context manager
    does this, as frames of contextlib would run before it is entered."""
    _evalframe.push_route(_ignore)
    try:
        return call(*args)
    finally:
        _evalframe.pop_route()


@contextmanager
def unrouted() -> Iterator[None]:
    """Run this thread's frames natively, inside `routed`."""
    with routed(lambda code, function: None):
        yield


@dataclass(frozen=True)
class Unseen:
    """A frame that ran natively although it was not allowed to."""

    code: CodeType
    caller: str

    def __str__(self) -> str:
        where = f"{self.code.co_filename}:{self.code.co_firstlineno}"
        return f"{self.code.co_qualname} ({where}) called at {self.caller}"


@contextmanager
def watch(allowed: Callable[[CodeType], bool]) -> Iterator[list[Unseen]]:
    """Collect the frames that run meanwhile and whose code is not `allowed`, each code once."""
    found: list[Unseen] = []

    def route(code: CodeType, function: FunctionType) -> None:
        if not allowed(code):
            back = sys._getframe(1)
            found.append(Unseen(code, f"{back.f_code.co_filename}:{back.f_lineno}"))

    with routed(route):
        yield found
