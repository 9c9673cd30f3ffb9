"""What a gradient scaler (torch.amp.GradScaler) asks of ATen, as arithmetic.

In: the two calls that look for gradients that are not finite and adapt the scale.  Out: their
tests and products, recorded op by op, so that they become kernels beside those of the step.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.trace import Trace, intercept

aten = torch.ops.aten


@intercept(aten._amp_foreach_non_finite_check_and_unscale_.default)
def unscale(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """g *= inv_scale, and found_inf becomes 1 where some g was not finite."""
    gradients, found_inf, inverse = args
    with trace:
        bad = found_inf
        for g in gradients:
            bad = torch.where(torch.isfinite(g).all(), bad, 1.0)
            g.copy_(torch.where(inverse == 1, g.float(), g.float() * inverse))
        found_inf.copy_(bad)


@intercept(aten._amp_update_scale_.default)
def update_scale(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Less after a step that was left out, more after `interval` steps that were taken."""
    scale, tracker, found_inf, growth, backoff, interval = args
    with trace:
        bad, taken = found_inf != 0, tracker + 1
        full = taken == interval
        grown = (scale.double() * growth).float()
        grown = torch.where(full & torch.isfinite(grown), grown, scale)
        scale.copy_(torch.where(bad, (scale.double() * backoff).float(), grown))
        tracker.copy_(torch.where(bad | full, 0, taken))
    return scale
