"""`jitshape.compile(module)`: an nn.Module that shares the given module's state.

In: a module and the dispatcher of its `__call__`.  Out: an instance of a subclass made for it,
whose `__dict__` is the module's own: the same parameters, buffers, hooks and state_dict keys;
train(), eval() and assignments through either are seen by both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from jitshape.options import Options

_MARK = "_jitshape"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _Handle:
    """What belongs to the wrapper alone and must not enter the shared `__dict__`."""

    __slots__ = ("call", "options", "original")

    def __init__(self, original: nn.Module, call: Callable, options: Options) -> None:
        self.original, self.call, self.options = original, call, options


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    """The class of wrappers of `cls`, which lives as long as one of them."""
    return next((sub for sub in cls.__subclasses__() if _MARK in vars(sub)), None) or _made(cls)


def _made(cls: type[nn.Module]) -> type[nn.Module]:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._jitshape.call(*args, **kwargs)

    def precompile(self: Any, /, *args: Any, **kwargs: Any) -> None:
        """Make the entry that serves such a call; nothing of it is run."""
        handle = self._jitshape
        handle.call.__func__.precompile(handle.original, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        handle = self._jitshape
        return _rebuild, (handle.original, handle.options)

    def __deepcopy__(self: Any, memo: dict) -> Any:
        handle = self._jitshape
        return _rebuild(copy.deepcopy(handle.original, memo), handle.options)

    namespace = {
        "__slots__": (_MARK,),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": __call__,
        "__reduce_ex__": __reduce_ex__,
        "__deepcopy__": __deepcopy__,
        "_orig_mod": property(lambda self: self._jitshape.original),
        "__wrapped__": property(lambda self: self._jitshape.original),
    }
    if not hasattr(cls, "precompile"):  # the user's own method stays
        namespace["precompile"] = precompile
    return type(cls)(cls.__name__, (cls,), namespace)


def _rebuild(original: nn.Module, options: Options) -> nn.Module:
    from jitshape import compiler

    return compiler.compiled(original, options)


def wrap_module(original: nn.Module, call: Callable, options: Options) -> nn.Module:
    """The compiled counterpart of `original`; `call(*args, **kwargs)` runs it."""
    cls = _subclass(type(original))
    builtin = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
    wrapper = builtin.__new__(cls)  # the user's own __new__ ran for the original
    object.__setattr__(wrapper, "__dict__", original.__dict__)
    cls._jitshape.__set__(wrapper, _Handle(original, call, options))  # type: ignore[attr-defined]
    return wrapper


def is_module(fn: Any) -> bool:
    return isinstance(fn, nn.Module)


def is_wrapper(module: Any) -> bool:
    """Whether `module` came from `wrap_module`."""
    return _MARK in vars(type(module))
