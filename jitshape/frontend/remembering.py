"""What functions with `functools.lru_cache` remember, looked up without their counting it.

In: the real function and arguments of a call.  Out: `peek`, the result that is there; `ask`, that
of a call which the program makes later; `recount`, the program's call, made by compiled code.
Invariant: `cache_info()` tells of the program's calls alone, and the order in which results are
forgotten is theirs; where the interpreter keeps results otherwise than known, calls are counted
too often.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import weakref
from typing import Any

Remembering = functools._lru_cache_wrapper
MISSING = object()


class Memory:
    """The dict of one function.  `asked` holds the calls that were made ahead of the program's, by
    how they are looked up."""

    def __init__(self, real: Any) -> None:
        parts = gc.get_referents(real)
        dicts = [x for x in parts if type(x) is dict and x is not real.__dict__]
        self.results: dict[Any, Any] | None = dicts[0] if len(dicts) == 1 else None
        self.mark = next((x for x in parts if type(x) is object), None)
        parameters = real.cache_parameters()
        self.typed, self.linked = parameters["typed"], parameters["maxsize"] is not None
        self.asked: list[Any] = []

    def key(self, args: tuple, kwargs: tuple[tuple[str, Any], ...]) -> Any:
        """As C makes it."""
        if not kwargs and not self.typed:
            return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
        values = tuple(value for _, value in kwargs)
        key = (*args, *((self.mark,) if kwargs else ()), *(x for pair in kwargs for x in pair))
        return (*key, *map(type, (*args, *values))) if self.typed else key

    def known(self) -> bool:
        """Whether results can be looked up."""
        return self.results is not None and (_LINKS_KNOWN or not self.linked)

    def get(self, key: Any) -> Any:
        """The result, or MISSING."""
        assert self.results is not None
        found = self.results.get(key, MISSING)
        return _result_of(found) if self.linked and found is not MISSING else found


_PLACE_OF_RESULT = object.__basicsize__ + 4 * tuple.__itemsize__  # behind two links, hash and key


def _result_of(link: Any) -> Any:
    """What an entry of a bounded memory holds."""
    return ctypes.py_object.from_address(id(link) + _PLACE_OF_RESULT).value


_memories: weakref.WeakKeyDictionary[Any, Memory] = weakref.WeakKeyDictionary()


def memory_of(real: Any) -> Memory:
    memory = _memories.get(real)
    if memory is None:
        memory = _memories[real] = Memory(real)
    return memory


def peek(real: Any, args: tuple, kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """The result that is there, or MISSING."""
    memory = memory_of(real)
    return memory.get(memory.key(args, kwargs)) if memory.known() else MISSING


def ask(real: Any, args: tuple, kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """The result of a call; where it is not there, this is the call, ahead of the program's."""
    found = peek(real, args, kwargs)
    if found is MISSING:
        found = real(*args, **dict(kwargs))
        memory = memory_of(real)
        if memory.known():
            memory.asked.append(memory.key(args, kwargs))
    return found


def recount(real: Any, /, *args: Any, **kwargs: Any) -> None:
    """The program's call: made, where it was not made ahead."""
    memory = memory_of(real)
    if not memory.known():
        return
    if memory.asked:
        key = memory.key(args, tuple(kwargs.items()))
        if key in memory.asked:
            memory.asked.remove(key)
            return
    real(*args, **kwargs)


def _links_are_known() -> bool:
    """Whether entries lie in memory as this expects them to."""

    @functools.lru_cache(maxsize=2)
    def probe(x: int) -> Any:
        return result

    result = object()
    probe(1)
    (link,) = Memory(probe).results.values()  # type: ignore[union-attr]
    size = type(link).__basicsize__
    if size < _PLACE_OF_RESULT + tuple.__itemsize__:
        return False
    place = id(link) + _PLACE_OF_RESULT
    return ctypes.c_void_p.from_address(place).value == id(result)


_LINKS_KNOWN = _links_are_known()
