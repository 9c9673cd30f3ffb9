"""Faults: an index read from a tensor that lies outside of what it indexes.

In: a flag that kernels raise.  Out: eager's own error.  A program that saw the flag raised runs
its graph with ATen on the same inputs, which nothing was written to yet, and that raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph


def new_fault() -> tuple[torch.Tensor, ctypes.c_int32]:
    """A flag that is down: for kernels, and as Python reads it fastest."""
    flag = torch.zeros(1, dtype=torch.int32)
    return flag, ctypes.c_int32.from_address(flag.data_ptr())


def check_faults(graph: Graph, inputs: Sequence[Any]) -> None:
    """Raise what eager raises for `inputs`."""
    evaluate(graph, inputs)
    raise IndexError("index out of range")
