"""Plain values as trees: what a file of the cache holds, and back.

In: numbers, strings, bytes, None, dtypes, devices, layouts, and tuples, lists and dicts of them.
Out: trees of lists, numbers, strings, bytes and None, as MessagePack writes them; a list stands
for what its first item says.
Invariant: what is read equals what was written in type and value, floats bit by bit; nothing is
looked up, imported or run but attributes of torch that are dtypes, layouts or memory formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

Tree = Any  # None, bool, int, float, str, bytes, or a list [tag, *trees]
Leaf = Callable[[Any], Tree]

_AS_THEY_ARE = (type(None), bool, float, str, bytes)
_NAMED = (torch.dtype, torch.layout, torch.memory_format)
_WORD = 1 << 63


class Record(msgspec.Struct, array_like=True):  # type: ignore
    """Base of records: written as the list of their fields."""


class Unrecordable(Exception):
    """Something that no record can hold; the text says what."""


class Unreadable(Exception):
    """A record that does not fit this process, or is none."""


def refuse(x: Any) -> Tree:
    raise Unrecordable(f"an object of {type(x).__module__}.{type(x).__qualname__}")


def tree(x: Any, leaf: Leaf = refuse) -> Tree:
    """The tree of `x`; `leaf` gives that of what is not plain."""
    kind = type(x)
    if kind in _AS_THEY_ARE:
        return x
    if kind is int:
        return x if -_WORD <= x < _WORD else ["int", hex(x)]
    if kind is tuple or kind is list:
        return [kind.__name__, *[tree(item, leaf) for item in x]]
    if kind is dict:
        return ["dict", *[[tree(key, leaf), tree(item, leaf)] for key, item in x.items()]]
    if kind is complex:
        return ["complex", x.real, x.imag]
    if kind in _NAMED:
        return ["torch", str(x).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(x)]
    return leaf(x)


class Reader:
    """Reads trees; subclasses add methods `read_TAG(*items)`."""

    def read(self, x: Tree) -> Any:
        """What `x` stands for.  Raises Unreadable."""
        if type(x) is not list:
            return x
        method = getattr(self, f"read_{x[0]}", None) if x and type(x[0]) is str else None
        if method is None:
            raise Unreadable(f"no record starts with {x[:1]}")
        return method(*x[1:])

    def read_int(self, text: str) -> int:
        return int(text, 16)

    def read_tuple(self, *items: Tree) -> tuple:
        return tuple(map(self.read, items))

    def read_list(self, *items: Tree) -> list:
        return list(map(self.read, items))

    def read_dict(self, *items: Tree) -> dict:
        return {self.read(key): self.read(item) for key, item in items}

    def read_complex(self, real: float, imag: float) -> complex:
        return complex(real, imag)

    def read_torch(self, name: str) -> Any:
        found = getattr(torch, name, None)
        if type(found) not in _NAMED:
            raise Unreadable(f"torch.{name} is no dtype, layout or memory format")
        return found

    def read_device(self, text: str) -> torch.device:
        return torch.device(text)
