"""Fused steps of optimizers, as the arithmetic that they do.

In: a call of `aten._fused_adam_` and its kin on lists of tensors.  Out: the update of each
parameter, recorded op by op, so that it is compiled as any other arithmetic.  Numbers that follow
from the count of steps are computed in f64, as eager does.
Invariant: whether a step is taken at all may depend on data, of a gradient scaler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.trace import Trace, intercept

aten = torch.ops.aten
ADAM = (aten._fused_adam_.default, aten._fused_adam_.tensor_lr)
ADAMW = (aten._fused_adamw_.default, aten._fused_adamw_.tensor_lr)
SGD = (aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr)


class _Finish:
    """What a gradient scaler asks of a step: the gradients are unscaled first, in place, and where
    some are not finite nothing is written."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.scale, self.found_inf = row.pop("grad_scale", None), row.pop("found_inf", None)
        self.maximize = row.pop("maximize")

    def gradient(self, gradient: Any) -> Any:
        """The gradient that the step uses."""
        if self.scale is not None:
            (written,) = self.written(gradient)
            written.div_(self.scale)
            self.finish([gradient], [written])
        return -gradient if self.maximize else gradient

    def written(self, *tensors: Any) -> list[Any]:
        """What the step writes in place of `tensors`."""
        return [t if self.found_inf is None else t.clone() for t in tensors]

    def finish(self, tensors: Sequence[Any], written: Sequence[Any]) -> None:
        """`tensors` become what was written, if the step is taken."""
        if self.found_inf is not None:
            for t, new in zip(tensors, written):
                t.copy_(torch.where(self.found_inf == 1, t, new))


@intercept(*ADAM, *ADAMW)
def adam(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr / (1 - b1^n) * m / (sqrt(v / (1 - b2^n)) + eps), m and v running averages of the
    gradient and of its square; AdamW shrinks p itself, Adam adds the decay to the gradient."""
    parameters, gradients, averages, squares, largest, steps = args
    row = dict(kwargs)
    finish = _Finish(row)
    rate, b1, b2, decay, eps = (row[n] for n in ("lr", "beta1", "beta2", "weight_decay", "eps"))
    with trace:
        for place, (p, g, m, v, step) in enumerate(
            zip(parameters, gradients, averages, squares, steps, strict=True)
        ):
            g = finish.gradient(g)
            own = (p, m, v, largest[place]) if row["amsgrad"] else (p, m, v)
            p, m, v, *top = new = finish.written(*own)
            if decay and func in ADAMW:
                p.mul_(1 - rate * decay)
            elif decay:
                g = g.add(p, alpha=decay)
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            for most in top:
                most.copy_(torch.maximum(most, v))
            square = top[0] if top else v
            count = step.double()
            size, root = rate / (1 - b1**count), (1 - b2**count).sqrt()
            p.sub_(size * (m / (square.sqrt() / root + eps)))
            finish.finish(own, new)


@intercept(*SGD)
def sgd(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr * g, or of the running sum of gradients."""
    parameters, gradients, buffers = args
    row = dict(kwargs)
    finish = _Finish(row)
    momentum = row["momentum"]
    with trace:
        for place, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            g = finish.gradient(g)
            own = (p, buffers[place]) if momentum else (p,)
            p, *rest = new = finish.written(*own)
            if row["weight_decay"]:
                g = g.add(p, alpha=row["weight_decay"])
            for buffer in rest:
                if row["is_first_step"]:
                    buffer.copy_(g)
                else:
                    buffer.mul_(momentum).add_(g, alpha=1 - row["dampening"])
                g = g.add(buffer, alpha=momentum) if row["nesterov"] else buffer
            p.sub_(row["lr"] * g)
            finish.finish(own, new)


@intercept(aten._fused_adagrad_.default, aten._fused_adagrad_.tensor_lr)
def adagrad(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """p -= lr / (1 + (n - 1) * lr_decay) * g / (sqrt(sum of g^2) + eps)"""
    row = dict(kwargs)
    finish = _Finish(row)
    with trace:
        for p, g, total, step in zip(*args, strict=True):
            g, own = finish.gradient(g), (p, total)
            p, total = new = finish.written(*own)
            if row["weight_decay"]:
                g = g.add(p, alpha=row["weight_decay"])
            rate = row["lr"] / (1 + (step.double() - 1) * row["lr_decay"])
            total.addcmul_(g, g)
            p.sub_(rate * (g / (total.sqrt() + row["eps"])))
            finish.finish(own, new)
