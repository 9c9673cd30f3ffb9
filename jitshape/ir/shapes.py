"""Functions of torch's on shapes alone."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import current_env, replaces
from jitshape.ir.strides import broadcast
from jitshape.ir.symnode import from_torch, to_torch


@replaces(torch.functional.broadcast_shapes)
def broadcast_shapes(*shapes: Any) -> Any:
    """The shape that all of them broadcast to; a number is a shape of one dimension."""
    env = current_env()
    rows = [s if isinstance(s, (tuple, list)) else (s,) for s in shapes]
    sizes = [tuple(from_torch(n) for n in row) for row in rows]
    if any(type(n) is int and n < 0 for row in sizes for n in row):
        raise RuntimeError("Trying to create tensor with negative dimension")
    return torch.Size([to_torch(n, env) for n in broadcast(env, *sizes)])
