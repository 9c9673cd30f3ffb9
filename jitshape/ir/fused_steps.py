"""Fused steps of optimizers, as the arithmetic that they do.

In: a call of `aten._fused_adam_` and its kin on lists of tensors.  Out: the update of each
parameter, recorded op by op, so that it is compiled as any other arithmetic.  Numbers that follow
from the count of steps are computed in f64, as eager does.
Invariant: whether a step is taken at all may depend on data; such calls end the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.trace import Trace, intercept

aten = torch.ops.aten
ADAM = (aten._fused_adam_.default, aten._fused_adam_.tensor_lr)
ADAMW = (aten._fused_adamw_.default, aten._fused_adamw_.tensor_lr)
SGD = (aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr)


def _prepared(gradient: Any, maximize: bool, grad_scale: Any, found_inf: Any) -> Any:
    """The gradient that the step uses; unscaling is done in place, as in eager."""
    if found_inf is not None:
        raise DataDependent(
            "a fused step of an optimizer is taken only where gradients are finite",
            because="found_inf is computed in the graph and unknown while tracing",
            avoid="jitshape.disable round the step, or unscale the gradients before it",
        )
    if grad_scale is not None:
        gradient.div_(grad_scale)
    return -gradient if maximize else gradient


@intercept(*ADAM, *ADAMW)
def adam(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr / (1 - b1^n) * m / (sqrt(v / (1 - b2^n)) + eps), m and v running averages of the
    gradient and of its square; AdamW shrinks p itself, Adam adds the decay to the gradient."""
    parameters, gradients, averages, squares, largest, steps = args
    row = dict(kwargs)
    finish = [row.pop(name, None) for name in ("grad_scale", "found_inf")]
    rate, b1, b2, decay, eps = (row[n] for n in ("lr", "beta1", "beta2", "weight_decay", "eps"))
    with trace:
        for place, (p, g, m, v, step) in enumerate(
            zip(parameters, gradients, averages, squares, steps, strict=True)
        ):
            g = _prepared(g, row["maximize"], *finish)
            if decay and func in ADAMW:
                p.mul_(1 - rate * decay)
            elif decay:
                g = g.add(p, alpha=decay)
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            if row["amsgrad"]:
                largest[place].copy_(torch.maximum(largest[place], v))
            square = largest[place] if row["amsgrad"] else v
            count = step.double()
            size, root = rate / (1 - b1**count), (1 - b2**count).sqrt()
            p.sub_(size * (m / (square.sqrt() / root + eps)))


@intercept(*SGD)
def sgd(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr * g, or of the running sum of gradients."""
    parameters, gradients, buffers = args
    row = dict(kwargs)
    finish = [row.pop(name, None) for name in ("grad_scale", "found_inf")]
    momentum = row["momentum"]
    with trace:
        for place, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            g = _prepared(g, row["maximize"], *finish)
            if row["weight_decay"]:
                g = g.add(p, alpha=row["weight_decay"])
            if momentum:
                buffer = buffers[place]
                if row["is_first_step"]:
                    buffer.copy_(g)
                else:
                    buffer.mul_(momentum).add_(g, alpha=1 - row["dampening"])
                g = g.add(buffer, alpha=momentum) if row["nesterov"] else buffer
            p.sub_(row["lr"] * g)


@intercept(aten._fused_adagrad_.default, aten._fused_adagrad_.tensor_lr)
def adagrad(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr / (1 + (n - 1) * lr_decay) * g / (sqrt(sum of g^2) + eps)"""
    row = dict(kwargs)
    finish = [row.pop(name, None) for name in ("grad_scale", "found_inf")]
    with trace:
        for p, g, total, step in zip(*args, strict=True):
            g = _prepared(g, row["maximize"], *finish)
            if row["weight_decay"]:
                g = g.add(p, alpha=row["weight_decay"])
            rate = row["lr"] / (1 + (step.double() - 1) * row["lr_decay"])
            total.addcmul_(g, g)
            p.sub_(rate * (g / (total.sqrt() + row["eps"])))
