"""The builtins that the compiler's own code needs, which the program may delete or replace.

Invariant: the program finds its own again behind a call that is made with the compiler's.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

_REPLACEABLE = ("print", "open", "input", "__import__", "breakpoint")  # people do
_BUILTINS = {
    name: builtin
    for name, builtin in vars(builtins).items()
    if isinstance(builtin, (type, BuiltinFunctionType)) and name not in _REPLACEABLE
}


def builtins_changed() -> bool:
    """Whether the program has deleted or replaced a builtin, which the compiler's code needs."""
    now = builtins.__dict__  # without a builtin, as any of them may be the one that is gone
    for name, builtin in _BUILTINS.items():
        if now.get(name) is not builtin:
            return True
    return False


def with_own_builtins(call: Callable[..., Any], *args: Any) -> Any:
    """`call(*args)`, which must not fail where the program stands: what goes on behind a break in
    which builtins were changed."""
    now = builtins.__dict__
    changed = {n: now[n] for n, own in _BUILTINS.items() if n in now and now[n] is not own}
    gone = [n for n in _BUILTINS if n not in now]
    if not changed and not gone:
        return call(*args)
    now.update(_BUILTINS)
    try:
        return call(*args)
    finally:
        now.update(changed)
        for name in gone:
            del now[name]
