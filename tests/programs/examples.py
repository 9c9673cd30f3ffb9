"""Programs that read objects of each kind, for the mutation fuzzer."""

from __future__ import annotations

import enum
import functools
import math
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SCALE, NAMES = 2.0, ["a", "b"]
TABLE = {"weights": [1.0, 2.0], "bias": 0.5, 3: "three"}
ORDERED = OrderedDict(first=1.0, second=2.0)
CHOSEN = {"a", "c"}
OPTIONAL: Any = None
Pair = namedtuple("Pair", "left right")


class Color(enum.Enum):
    RED = 1
    GREEN = 2


@dataclass
class Config:
    width: int = 4
    scale: float = 0.5
    name: str = "plain"
    layers: list[float] = field(default_factory=lambda: [1.0, 2.0])
    color: Color = Color.RED


class Base:
    offset = 1.0

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offset

    @classmethod
    def made(cls, n: int) -> float:
        return n * cls.offset

    @staticmethod
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @property
    def ratio(self) -> float:
        return self.gain / 2


class Derived(Base):
    def __init__(self) -> None:
        self.gain, self.children, self.note = 3.0, {"a": 1}, None

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return super().shift(x) * self.gain

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(self.shift(x)) + self.ratio + self.made(2)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return [1.0, 2.0][index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Derived) and self.gain == other.gain

    __hash__ = None  # type: ignore[assignment]


class Fallback:
    """What it lacks comes from another object."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Slotted:
    __slots__ = ("missing", "scale", "tensor")

    def __init__(self) -> None:
        self.scale, self.tensor = 1.5, torch.ones(3)


class Default(dict):
    def __missing__(self, key: str) -> float:
        return 7.0


OBJECT, FALLBACK, SLOTTED = Derived(), Fallback(SimpleNamespace(depth=2, rate=0.5)), Slotted()
DEFAULT = Default(a=1.0)
CONFIG = Config()
COUNTS: defaultdict = defaultdict(float, a=1.0)


def shifted(x: torch.Tensor, by: float = 1.0, *, power: int = 2) -> torch.Tensor:
    return x**power + by


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * SCALE

    return wrapper


@decorated
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x + 1


PARTIAL = functools.partial(shifted, by=3.0)


def global_values(x: torch.Tensor) -> torch.Tensor:
    for name in NAMES:
        x = x + (TABLE["bias"] if name in CHOSEN else len(name))
    return x * SCALE + sum(TABLE["weights"]) + (0.0 if OPTIONAL is None else OPTIONAL)


def dictionaries(x: torch.Tensor) -> torch.Tensor:
    for key, value in ORDERED.items():
        x = x * value + len(key)
    x = x + DEFAULT["a"] + DEFAULT["zz"] + TABLE.get("absent", 2.0) + COUNTS["a"]
    return x + len(TABLE) + ("bias" in TABLE) + math.floor(TABLE["bias"])


def objects(x: torch.Tensor) -> torch.Tensor:
    x = OBJECT(x) + len(OBJECT) + OBJECT[1] + (OBJECT == OBJECT)
    if OBJECT and hasattr(OBJECT, "note") and not hasattr(OBJECT, "other"):
        x = x + OBJECT.children["a"]
    return x * FALLBACK.depth + FALLBACK.rate


def slots(x: torch.Tensor) -> torch.Tensor:
    if not hasattr(SLOTTED, "missing"):
        x = x * SLOTTED.scale
    return x + SLOTTED.tensor


def configured(x: torch.Tensor) -> torch.Tensor:
    if CONFIG.name == "plain" and CONFIG.color is Color.RED:
        x = x * CONFIG.scale
    for layer in CONFIG.layers:
        x = x + layer
    return x.reshape(-1)[: CONFIG.width]


def functions(x: torch.Tensor) -> torch.Tensor:
    x = shifted(x) + shifted(x, 2.0, power=1) + scaled(x) + PARTIAL(x)
    x = x * len(shifted.__name__) + len(scaled.__wrapped__.__name__) + len(shifted.__doc__ or "")
    return functools.reduce(lambda a, b: a + b, [x, *map(shifted, [x, x])])


def closing(factor: float, table: dict) -> Any:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor + table["k"]

    return inner


closure = closing(3.0, {"k": 1.0})


def arguments(x: torch.Tensor, config: Any, items: list, options: dict, *more: float) -> tuple:
    y = x * config.scale + sum(items) + options["k"] + sum(more)
    return (y, Pair(config.width, y + 1)) if isinstance(items, list) else y


def metadata(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.requires_grad or y.is_contiguous():
        x = x + 1
    if x.dim() == 2 and x.dtype == torch.float32 and y.is_leaf and x.stride(0) > 2:
        x = x * x.shape[1]
    return x + y.numel() + (x is y)


class Net(nn.Module):
    """Modules with state of every kind, hooks, and attributes that decide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.branches = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})
        self.stack = nn.Sequential(nn.ReLU(), nn.Linear(3, 3, bias=False))
        self.register_buffer("offset", torch.arange(3.0))
        self.scale = nn.Parameter(torch.ones(1))
        self.chosen, self.optional, self.depth = "a", None, 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = self.branches[self.chosen](x)
        for _ in range(self.depth):
            x = self.stack(x)
        if self.optional is not None:
            x = x + self.optional
        return F.dropout(x * self.scale + self.offset, 0.1, self.training)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net[1].register_forward_hook(lambda module, args, result: result + 1)
    return net


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


class Running(nn.Module):
    """Writes to its buffers and reads them."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "square", "last"):
            self.register_buffer(name, torch.ones(4))
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x.mean(0))
        self.square.mul_(0.5).add_(x.square().mean(0))
        self.last.copy_(x[0])
        return (x - self.mean) * self.scale / self.square


def accumulate(total: torch.Tensor, counts: list, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    counts[0].mul_(w).add_(total)
    return x * w + total


def x() -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, 3)


def rows() -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, 20).reshape(5, 4)


EXAMPLES: dict[str, tuple[Any, tuple]] = {
    "global_values": (global_values, (x(),)),
    "dictionaries": (dictionaries, (x(),)),
    "objects": (objects, (x(),)),
    "slots": (slots, (x(),)),
    "configured": (configured, (rows(),)),
    "functions": (functions, (x(),)),
    "closure": (closure, (x(),)),
    "arguments": (arguments, (x(), Config(), [1.0, 2.0], {"k": 1.0, "j": 2}, 1.5)),
    "metadata": (metadata, (rows(), rows())),
    "net": (Net().eval(), (rows(),)),
    "training net": (Net(), (rows(),)),
    "hooked": (hooked(), (rows(),)),
    "tied": (tied(), (rows(),)),
    "running": (Running(), (rows(),)),
    "accumulate": (accumulate, (x(), [x() + 1], x() * 2, x() - 3)),
}
