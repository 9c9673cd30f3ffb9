"""The shadow check: a sample of the calls of compiled code also runs eagerly, and is compared.

In: JITSHAPE_SHADOW, the share of calls (`0.01`; `1,raise` raises instead of warning), and the
entries of compiled functions.  Out: entries that, for a call of the sample, first run the original
function on clones of the arguments and of the state that it names, then the compiled code on the
real ones, and compare results, strides, mutations and the gradients of everything that the call was
given (unless hooks of the program's would see these).
Random state is put back between the two, so both draw the same numbers.  What the function
reaches through other functions' globals is not cloned, and what it does there is done twice.
Invariant: the call's own outcome is the compiled code's, whatever the check finds.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from jitshape.errors import ShadowDifference, UnknownOption
from jitshape.frontend import _evalframe
from jitshape.observe import counters, logs
from jitshape.options import environment

TOLERANCES = {  # relative and absolute: sums are taken in another order
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
}
SHARED = (ModuleType, type, FunctionType, CodeType, str, bytes, int, float, complex, bool)


@dataclass(frozen=True)
class Shadow:
    """The setting: the share of calls to check, and whether a difference raises."""

    share: float
    raises: bool
    chance: Callable[[], float] = random.Random().random  # not the program's own generator


def setting() -> Shadow | None:
    """What JITSHAPE_SHADOW says; None: nothing is checked."""
    text = environment("SHADOW")
    if not text:
        return None
    share, _, rest = text.partition(",")
    try:
        if rest.strip() not in ("", "raise") or not 0 <= float(share) <= 1:
            raise ValueError(text)
    except ValueError as error:
        raise UnknownOption(
            f"JITSHAPE_SHADOW={text!r} is not known",
            because="it is the share of calls to check, from 0 to 1, and optionally ',raise'",
            avoid="JITSHAPE_SHADOW=0.01",
        ) from error
    return Shadow(float(share), bool(rest)) if float(share) else None


def shadowed(
    entry: Callable[..., Any], count: int, function: FunctionType, shadow: Shadow, name: str
) -> Callable[..., Any]:
    """`entry`, which takes `count` values, as one that takes the call's slots behind them."""

    def call(*values: Any) -> Any:
        inputs, slots = values[:count], values[count:]
        if shadow.chance() >= shadow.share:
            return entry(*inputs)
        return _Check(function, name, shadow.raises).run(entry, inputs, slots)

    return call


class _Check:
    """One call of the sample."""

    def __init__(self, function: FunctionType, name: str, raises: bool) -> None:
        self.function, self.name, self.raises = function, name, raises
        code = function.__code__
        self.where = f"{code.co_filename}:{code.co_firstlineno}"

    def run(self, entry: Callable[..., Any], inputs: tuple, slots: tuple) -> Any:
        cloner = Cloner()
        try:
            twin = twin_of(self.function, cloner)
            cloned = tuple(map(cloner.clone, slots))
        except Exception as error:  # an object of the user's that cannot be copied
            counters.count_in("shadow", f"skipped: {type(error).__name__}: {error}")
            return entry(*inputs)
        expected = outcome_of(eager_call(twin), cloned)
        with_state = outcome_of(lambda *args: _evalframe.call_finished(entry, *args), inputs)
        counters.count_in("shadow", "checked")
        found = list(differences(expected, with_state, "the result"))
        for clone, real in cloner.pairs:
            found += differences(clone, real, "an argument or a global")
        if not found:
            found += gradient_differences(expected, with_state, cloner.tensors)
        if found:
            self.report(found)
        if isinstance(with_state, Raised):
            raise with_state.error
        return with_state

    def report(self, found: Sequence[str]) -> None:
        counters.count_in("shadow", "different")
        error = ShadowDifference(
            f"{self.name} computes something else than eager",
            where=self.where,
            because="; ".join(found[:4]),
            so="the compiled code's result is used" if not self.raises else "",
            avoid="report it with the output of JITSHAPE_LOGS=graph,guards; jitshape.disable the "
            "function meanwhile",
        )
        if self.raises:
            raise error
        logs.warn(f"JITSHAPE_SHADOW: {error}")


# ---- running both


@dataclass(frozen=True)
class Raised:
    """A call that raised."""

    error: BaseException


def outcome_of(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return Raised(error)


def eager_call(twin: FunctionType) -> Callable[..., Any]:
    """Calls `twin` with slots, without compiled code, output or traces in the random state."""
    call_original = _evalframe.Dispatcher(twin, None).call_original

    def call(*slots: Any) -> Any:
        _evalframe.push_bypass()
        try:
            with random_state_kept(), contextlib.redirect_stdout(io.StringIO()):
                return call_original(slots)
        finally:
            _evalframe.pop_bypass()

    return call


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """The generators of torch, Python and numpy are put back at the end."""
    numpy = sys.modules.get("numpy")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        python = random.getstate()
        arrays = numpy.random.get_state() if numpy else None
        try:
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(arrays)


# ---- cloning


class Cloner:
    """Copies of objects that share memory among each other as the originals do.  `pairs`: every
    (clone, original) that a call can change."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.pairs: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []  # (clone, original), each once

    def clone(self, x: Any) -> Any:
        """Raises what the copying of an object of the user's raises."""
        if x is None or isinstance(x, SHARED):
            return x
        self.enter_tensors(x)
        made = copy.deepcopy(x, self.memo)
        if made is not x:
            self.pairs.append((made, x))
        return made

    def enter_tensors(self, x: Any) -> None:
        """Tensors are copied by us: deepcopy refuses those that autograd computed."""
        for tensor in tensors_in(x):
            if id(tensor) not in self.memo:
                made = self.memo[id(tensor)] = self.tensor(tensor)
                self.tensors.append((made, tensor))

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if t.layout is not torch.strided or type(t) not in (torch.Tensor, torch.nn.Parameter):
                made = t.detach().clone()
            else:
                storage = t.untyped_storage()
                if storage._cdata not in self.storages:
                    self.storages[storage._cdata] = storage.clone()
                made = torch.empty(0, dtype=t.dtype, device=t.device)
                copied = self.storages[storage._cdata]
                made.set_(copied, t.storage_offset(), t.shape, t.stride())
        if isinstance(t, torch.nn.Parameter):
            return torch.nn.Parameter(made, t.requires_grad)
        made.requires_grad_(t.requires_grad)
        return made if t.is_leaf else made.clone()


def tensors_in(x: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors in containers, in modules and in the attributes of objects."""
    if isinstance(x, torch.Tensor):
        yield x
    elif depth > 8 or x is None or isinstance(x, SHARED):
        return
    elif isinstance(x, dict):
        for value in x.values():
            yield from tensors_in(value, depth + 1)
    elif isinstance(x, (list, tuple, set, frozenset)):
        for value in x:
            yield from tensors_in(value, depth + 1)
    else:
        yield from tensors_in(getattr(x, "__dict__", None), depth + 1)


def twin_of(function: FunctionType, cloner: Cloner) -> FunctionType:
    """The function with clones of the globals and cells that it names."""
    names = set(_names(function.__code__))
    own = {k: cloner.clone(v) for k, v in function.__globals__.items() if k in names}
    cells = tuple(_cell(cell, cloner) for cell in function.__closure__ or ())
    twin = FunctionType(
        function.__code__,
        {**function.__globals__, **own},
        function.__name__,
        function.__defaults__ and tuple(map(cloner.clone, function.__defaults__)),
        cells or None,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _cell(cell: CellType, cloner: Cloner) -> CellType:
    try:
        return CellType(cloner.clone(cell.cell_contents))
    except ValueError:
        return CellType()


# ---- comparing


def gradient_differences(
    expected: Any, got: Any, inputs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[str]:
    """Of the same weighted sum of all results.  Nothing is accumulated, and the program can still
    call backward itself."""
    both = [(mine, real) for mine, real in inputs if mine.requires_grad and real.requires_grad]
    results = [[t for t in tensors_in(x) if t.requires_grad] for x in (expected, got)]
    hooked = any(t._backward_hooks for _, t in both)
    if isinstance(expected, Raised) or not both or not all(results) or hooked:
        return
    mine, real = (
        outcome_of(_gradients, (outs, [row[place] for row in both]))
        for place, outs in enumerate(results)
    )
    if isinstance(mine, Raised):  # a graph that was used up, or has no formula
        return
    counters.count_in("shadow", "gradients")
    yield from differences(mine, real, "the gradient of an input")


def _gradients(outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Any]:
    weights = [
        torch.arange(t.numel(), device=t.device).cos().reshape(t.shape).to(t.dtype) for t in outs
    ]
    found = torch.autograd.grad(outs, inputs, weights, retain_graph=True, allow_unused=True)
    return [None if grad is None else grad.detach() for grad in found]


def differences(expected: Any, got: Any, where: str, depth: int = 0) -> Iterator[str]:
    """What a program can tell apart, as text."""
    if isinstance(expected, Raised):
        if not isinstance(got, Raised) or type(expected.error) is not type(got.error):
            shown = got.error if isinstance(got, Raised) else f"a {type(got).__name__}"
            yield f"{where}: eager raises {expected.error!r}, compiled gives {shown!r}"
    elif isinstance(got, Raised):
        yield f"{where}: compiled raises {got.error!r}, eager does not"
    elif isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        yield from _tensor_differences(expected, got, where)
    elif type(expected) is not type(got):
        yield f"{where}: eager gives {type(expected).__name__}, compiled {type(got).__name__}"
    elif isinstance(expected, (int, float, str, bytes, complex)):
        same = expected == got or (expected != expected and got != got)
        if not same and not (
            isinstance(expected, float) and abs(expected - got) <= 1e-6 * abs(got)
        ):
            yield f"{where}: eager gives {expected!r}, compiled {got!r}"
    elif depth < 8:
        yield from _part_differences(expected, got, where, depth + 1)


def _part_differences(expected: Any, got: Any, where: str, depth: int) -> Iterator[str]:
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(got):
            yield f"{where}: eager gives {len(expected)} items, compiled {len(got)}"
        for index, (a, b) in enumerate(zip(expected, got)):
            yield from differences(a, b, f"{where}[{index}]", depth)
    elif isinstance(expected, dict):
        if list(map(str, expected)) != list(map(str, got)):
            yield f"{where}: eager gives the keys {list(expected)}, compiled {list(got)}"
        for (key, a), b in zip(expected.items(), got.values()):
            yield from differences(a, b, f"{where}[{key!r}]", depth)
    elif not isinstance(expected, SHARED) and hasattr(expected, "__dict__"):
        for name in expected.__dict__.keys() & got.__dict__.keys():
            a, b = expected.__dict__[name], got.__dict__[name]
            yield from differences(a, b, f"{where}.{name}", depth)


def _tensor_differences(a: torch.Tensor, b: torch.Tensor, where: str) -> Iterator[str]:
    for what, of in (
        ("shape", lambda t: tuple(t.shape)),
        ("dtype", lambda t: t.dtype),
        ("device", lambda t: t.device),
        ("requires_grad", lambda t: t.requires_grad),
        ("strides", _strides),
    ):
        if of(a) != of(b):
            yield f"{where}: eager gives {what} {of(a)}, compiled {of(b)}"
            if what in ("shape", "dtype"):
                return
    if a.layout is not torch.strided:
        return
    a, b = a.detach(), b.detach()
    relative, absolute = TOLERANCES.get(a.dtype, (1e-7, 1e-7))
    if not torch.allclose(b, a, rtol=relative, atol=absolute, equal_nan=True):
        error = (a.to(torch.float64) - b.to(torch.float64)).abs() if not a.is_complex() else a - b
        yield f"{where}: values differ by up to {error.abs().nan_to_num().max().item():.3g}"


def _strides(t: torch.Tensor) -> tuple[int | None, ...]:
    """Those that can be observed."""
    if t.layout is not torch.strided or t.numel() == 0:
        return ()
    return tuple(stride if size > 1 else None for stride, size in zip(t.stride(), t.shape))
