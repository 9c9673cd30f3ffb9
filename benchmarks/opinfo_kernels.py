"""What computes torch's ops: generated kernels, calls of ATen, or neither (views, numbers).

    python benchmarks/opinfo_kernels.py --dtypes float32,int64,bool,complex64,bfloat16

For each op of torch's OpInfo database that takes the dtype: the first samples, each compiled with
dynamic=True, forward and, with --gradients, backward.  An op is counted by all its samples
together; what cannot be compiled whole counts as such.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import jitshape

KINDS = {  # by whether there are kernels, and calls of ATen
    (True, False): "generated",
    (True, True): "generated and ATen",
    (False, True): "ATen",
    (False, False): "neither",
}
BROKEN = "not whole"
COLUMNS = (*KINDS.values(), BROKEN)


def outcome(op: Any, dtype: torch.dtype, samples: int, gradients: bool) -> tuple[str, Counter]:
    """(kind, calls of ATen by op)"""
    calls: Counter[str] = Counter()
    kernels = whole = 0
    rows = op.sample_inputs("cpu", dtype, requires_grad=gradients)
    for sample in itertools.islice(rows, samples):
        jitshape.reset()
        try:
            run(jitshape.compile(op_of(op), dynamic=True, fullgraph=True), sample, gradients)
        except Exception:
            continue
        stats, whole = jitshape.stats(), whole + 1
        kernels += stats["kernels"]
        calls.update(stats["extern_ops"])
    return KINDS[bool(kernels), bool(calls)] if whole else BROKEN, calls


def op_of(op: Any) -> Any:
    return lambda *args, **kwargs: op(*args, **kwargs)


def run(function: Any, sample: Any, gradients: bool) -> None:
    result = function(sample.input, *sample.args, **sample.kwargs)
    outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if gradients and outs:
        torch.autograd.backward(outs, [torch.ones_like(t) for t in outs])


def ops(dtype: torch.dtype, gradients: bool) -> Iterator[Any]:
    for op in op_db:
        if dtype in op.supported_dtypes("cpu") and (op.supports_autograd or not gradients):
            yield op


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"| dtype | ops | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
    for name in options.dtypes.split(","):
        dtype, kinds, calls = getattr(torch, name), Counter[str](), Counter[str]()
        for op in ops(dtype, options.gradients):
            kind, called = outcome(op, dtype, options.samples, options.gradients)
            kinds[kind] += 1
            calls.update(dict.fromkeys(called, 1))
        print(f"| {name} | {kinds.total()} | {' | '.join(str(kinds[k]) for k in COLUMNS)} |")
        print(f"ATen most in {name}: {', '.join(f'{k} {n}' for k, n in calls.most_common(12))}")


if __name__ == "__main__":
    main()
