"""What is symbolic where a trace ends stays symbolic where its results go.

In: the frames that a graph break rebuilds, or the result of a function.  Out: the numbers in them
that were symbolic, by the text of their sources in the code that gets them: resume functions
(`Continuations.varying`), or whatever compiled function a result is given to (marks.note_varying).
Only the call that compiles looks, so that later calls pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.frame import FrameSnapshot
from jitshape.frontend.instructions import slot_names
from jitshape.frontend.marks import note_varying
from jitshape.frontend.positions import origin_of
from jitshape.frontend.torchside.numbers import SymbolicNumber
from jitshape.frontend.torchside.tensors import TensorValue
from jitshape.frontend.values.base import Value
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.sequences import SequenceValue

if TYPE_CHECKING:
    from jitshape.ir.shape_env import ShapeEnv


def varying_slots(frames: Sequence[FrameSnapshot], env: ShapeEnv) -> Iterator[tuple[CodeType, str]]:
    """(code, source) for the symbolic numbers in the local variables of the frames.  The pieces
    of a function call their variables as the function does."""
    for frame in frames:
        origin = origin_of(frame.code)
        code = frame.code if origin is None else origin.code
        for name, value in zip(slot_names(frame.code), frame.slots):
            if isinstance(value, Value):
                for text in symbolic_numbers(value, env, name):
                    yield code, text


def symbolic_numbers(value: Value | None, env: ShapeEnv, text: str = "") -> Iterator[str]:
    """The sources, below `text`, of the numbers in `value` that are symbolic."""
    if isinstance(value, TensorValue):
        entered = value.entered
        for dim, size in enumerate(() if entered is None else entered.value.type.shape):
            if type(env.simplify(size)) is not int:
                yield f"{text}.size({dim})"
    elif isinstance(value, SymbolicNumber):
        yield text
    elif isinstance(value, SequenceValue):
        for index, item in enumerate(value.cells):
            yield from symbolic_numbers(item, env, f"{text}[{index}]")
    elif isinstance(value, DictValue):
        for entry in value.entries.values():
            if entry.key.is_constant():
                yield from symbolic_numbers(entry.value, env, f"{text}[{entry.key.constant()!r}]")


def noting(entry: Callable[..., Any], texts: Collection[str]) -> Callable[..., Any]:
    """`entry`, with the sizes of its result noted that were symbolic."""
    return partial(_call_and_note, entry, texts) if texts else entry


def _call_and_note(entry: Callable[..., Any], texts: Collection[str], *args: Any) -> Any:
    result = entry(*args)
    _note(result, "", texts)
    return result


def _note(result: Any, text: str, texts: Collection[str]) -> None:
    if isinstance(result, torch.Tensor):
        dims = [d for d in range(result.ndim) if f"{text}.size({d})" in texts]
        if dims:
            note_varying(result, dims)
    elif isinstance(result, (list, tuple)):
        for index, item in enumerate(result):
            _note(item, f"{text}[{index}]", texts)
    elif isinstance(result, dict):
        for key, item in result.items():
            _note(item, f"{text}[{key!r}]", texts)
