"""What a forked process must not inherit from the threads that it lost.

In: locks made here, and state of the process that a thread changes for a while.  Out: in a child,
locks that other threads held are free, and what they had changed is undone.  A lock with `settled`
guards what is of no use half done (LLVM at work): a fork waits for it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_settled: list[Any] = []
_in_children: list[Callable[[], object]] = []
_changes: dict[int, list[Callable[[], object]]] = {}  # by thread


def lock(settled: bool = False) -> Any:
    """A reentrant lock; one with `settled` lives as long as the process."""
    made = threading.RLock()
    _locks.add(made)
    if settled:
        _settled.append(made)
    return made


@contextmanager
def changed(undo: Callable[[], object]) -> Iterator[None]:
    """Round a block in which state of the process is changed, and which calls `undo` at its end."""
    own = _changes.setdefault(threading.get_ident(), [])
    own.append(undo)
    try:
        yield
    finally:
        undo()
        own.pop()
        if not own:
            _changes.pop(threading.get_ident(), None)


def in_children(call: Callable[[], object]) -> None:
    """Have `call` made in each child, on the thread that it has."""
    _in_children.append(call)


def _before() -> None:
    for each in _settled:
        each.acquire()


def _after() -> None:
    for each in _settled:
        each.release()


def _in_child() -> None:
    _after()
    for each in list(_locks):
        if not each._is_owned():
            each._at_fork_reinit()
    own = threading.get_ident()
    for thread in [thread for thread in _changes if thread != own]:
        for undo in reversed(_changes.pop(thread)):
            undo()
    for call in _in_children:
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
