"""One layer of an LSTM over a sequence of any length, by the kernel that eager takes on CPUs.

In training its forward also gives a workspace, which only its backward can read.  The kernel makes
it where autograd looks, and graphs run where it does not: so `run` turns it on, for tensors that
autograd does not know.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.graph import tensor_type
from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import op
from jitshape.ir.types import TensorType

_TRAIN = 15  # the place of this argument

aten = torch.ops.aten


@op("aten.mkldnn_rnn_layer.default", family="extern")
class RNNLayer:
    """(output, hy, cy, workspace)"""

    @staticmethod
    def canonical(env, *args):
        train = bool(args[_TRAIN]) and torch.is_grad_enabled()
        return (*args[:_TRAIN], train), {}

    @staticmethod
    def type(env, x, *rest):
        type_ = tensor_type(x)
        hidden, size = tensor_type(rest[4]), rest[9]
        out = fresh((*type_.shape[:2], size), type_.dtype, type_.device)
        state = fresh(hidden.shape, type_.dtype, type_.device)
        if not rest[_TRAIN - 1]:
            return [out, state, state, None]
        return [out, state, state, TensorType((env.unbacked(0),), (1,), torch.uint8, type_.device)]

    @staticmethod
    def run(*args):
        given = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        with torch.set_grad_enabled(args[_TRAIN]):
            return aten.mkldnn_rnn_layer.default(*given)

    @staticmethod
    def samples():
        x, h, c = torch.randn(7, 2, 4), torch.randn(2, 5), torch.randn(2, 5)
        weights = torch.randn(20, 4), torch.randn(20, 5), torch.randn(20), torch.randn(20)
        return [((x, *weights, h, c, False, [], 2, 5, 1, True, False, False, False), {})]


@op("aten.mkldnn_rnn_layer_backward.default", family="extern")
class RNNLayerBackward:
    """Gradients of the input, the four weights and the two states."""

    @staticmethod
    def type(env, *args):
        def like(x: Any) -> TensorType:
            type_ = tensor_type(x)
            return fresh(type_.shape, type_.dtype, type_.device)

        return [like(x) for x in args[:7]]

    @staticmethod
    def samples():
        return []
