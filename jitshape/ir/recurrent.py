"""torch.lstm as one op for each layer and direction, for sequences of any length.

In: a call on symbolic tensors that eager gives to its fast CPU kernel.  Out: output and states of
that kernel, which C++ would ask for numbers on the way to it.  Other calls are left to C++.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import dropout, replaces
from jitshape.ir.symbolic_tensor import SymbolicTensor

_LSTM = 2  # the kernel's number for it
_PARTS = 4  # weights and biases of one layer and direction


@replaces(torch.lstm)
def lstm(
    x: Any,
    state: Any,
    weights: Any,
    has_biases: Any,
    num_layers: int,
    probability: float,
    train: bool,
    bidirectional: bool = False,
    batch_first: bool = False,
) -> Any:
    """(output, states, cells)"""
    directions = 2 if bidirectional else 1
    if not isinstance(state, (tuple, list)) or not has_biases:
        return NotImplemented
    if len(weights) != _PARTS * num_layers * directions or not _is_fast([x, *state, *weights]):
        return NotImplemented
    hidden, cells = ([s[i] for i in range(num_layers * directions)] for s in state)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    counts = hidden[0].size(-1), num_layers, True, bidirectional, batch_first, train
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[_PARTS * place : _PARTS * (place + 1)]
            row = (x, *own, hidden[place], cells[place], bool(direction), [], _LSTM, *counts)
            output, hidden[place], cells[place], _ = torch.ops.aten.mkldnn_rnn_layer(*row)
            outputs.append(output)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if train and probability and layer < num_layers - 1:
            x = dropout(x, probability)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(hidden), torch.stack(cells)


def _is_fast(tensors: list[Any]) -> bool:
    """Whether eager takes the kernel for these."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    symbolic = all(type(t) is SymbolicTensor for t in tensors)
    return symbolic and all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
