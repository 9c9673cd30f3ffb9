"""What the global names of a program's text stand for, as records.

In: the bindings that codegen/program.py wrote, and the launchers of the program's kernels.  Out:
the namespace that the text is executed in.  A binding is a tuple, its kind first:

    ("helper", name)         one of HELPERS
    ("op", op)               what calls ATen, or a custom op
    ("constant", value)      a dtype, a device, a number that has no literal
    ("product", dtype, transpose_a, transpose_b, bias)      a matrix product by BLAS
    ("empty", dtype)         what makes uninitialised CPU tensors
    ("kernel", place)        a launcher
    ("faults",), ("check",)  flags that are down; what raises eager's error
    ("layouts",)             what lays results out where a size is 0 or 1

Invariant: a program of this process and one read from a record are bound by this one function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from jitshape.backend.blas import gemm
from jitshape.backend.empty import empty_of
from jitshape.backend.externs import extern_callable, with_strides
from jitshape.backend.faults import new_fault
from jitshape.errors import Refuted
from jitshape.ir.evaluate import rebuild_alias
from jitshape.ir.ops.externs import check_shape
from jitshape.ir.records.plain import Unreadable
from jitshape.ir.versions import add_versions, reshape, set_version

Binding = tuple[Any, ...]

HELPERS: dict[str, Any] = {
    "empty": torch.empty_strided,
    "as_strided": torch.as_strided,
    "math": math,
    "no_grad": torch.no_grad,
    "random_state": torch.get_rng_state,
    "new_fault": new_fault,
    "with_strides": with_strides,
    "check_shape": check_shape,
    "rebuild_alias": rebuild_alias,
    "reshape": reshape,
    "set_version": set_version,
    "add_versions": add_versions,
    "Refuted": Refuted,
}


def namespace(
    bindings: Mapping[str, Binding],
    launchers: Sequence[Callable[..., None]],
    check: Callable[[Sequence[Any]], None],
    layouts: Callable[..., Any] | None,
) -> dict[str, Any]:
    """The objects by name; `check` raises what eager raises for the program's inputs.  Raises
    Unreadable where this process lacks one."""
    makers: dict[str, Callable[..., Any]] = {
        "helper": HELPERS.__getitem__,
        "op": _op,
        "constant": lambda value: value,
        "product": _product,
        "empty": empty_of,
        "kernel": launchers.__getitem__,
        "faults": list,
        "check": lambda: check,
        "layouts": lambda: layouts,
    }
    return {name: makers[kind](*parts) for name, (kind, *parts) in bindings.items()}


def _op(op: str) -> Callable[..., Any]:
    try:
        return extern_callable(op)[0]
    except AttributeError as error:
        raise Unreadable(f"no op {op}") from error


def _product(dtype: torch.dtype, transpose_a: bool, transpose_b: bool, bias: bool) -> Any:
    call = gemm(dtype, transpose_a, transpose_b, bias)
    if call is None:
        raise Unreadable(f"no matrix product of {dtype} in torch's library")
    return call
