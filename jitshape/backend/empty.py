"""Uninitialised tensors: the program's `empty(shape, strides)`, one function for each dtype.

In: a dtype.  Out: a function that makes CPU tensors exactly as `torch.empty_strided` does, through
the C interface of libtorch where that proves right, and by that function itself where not.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from functools import partial

import torch

from jitshape.backend import _launch
from jitshape.backend._launch import Empty

Maker = Callable[[tuple[int, ...], tuple[int, ...]], torch.Tensor]
SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
"""The numbers of c10::ScalarType."""
FUNCTIONS = {
    "aoti_torch_empty_strided": "libtorch_cpu.so",
    "aoti_torch_get_data_ptr": "libtorch_cpu.so",
    "aoti_torch_delete_tensor_object": "libtorch_cpu.so",
    "_Z16THPVariable_WrapRKN2at10TensorBaseE": "libtorch_python.so",
}


@functools.cache
def empty_of(dtype: torch.dtype) -> Maker:
    """What makes CPU tensors of `dtype`."""
    otherwise = partial(torch.empty_strided, dtype=dtype, device="cpu")
    number = SCALAR_TYPES.get(dtype)
    if number is None or not makes_tensors_directly():
        return otherwise
    made = Empty(number, dtype.itemsize, otherwise)
    return made if agrees(made, otherwise) else otherwise


@functools.cache
def makes_tensors_directly() -> bool:
    """Let `Empty` call libtorch's C interface, if this torch has it."""
    folder = os.path.join(os.path.dirname(str(torch.__file__)), "lib")
    try:
        found = [
            getattr(ctypes.CDLL(os.path.join(folder, library)), name)
            for name, library in FUNCTIONS.items()
        ]
    except (OSError, AttributeError):
        return False
    _launch.use_aten(*(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found))
    return True


def agrees(made: Maker, otherwise: Maker) -> bool:
    """Whether both make the same kind of tensors, in and out of inference mode."""
    for shape, strides in (((), ()), ((2, 3), (3, 1)), ((3, 0), (1, 3)), ((2, 2), (1, 4))):
        for inference in (False, True):
            with torch.inference_mode(inference):
                if _traits(made(shape, strides)) != _traits(otherwise(shape, strides)):
                    return False
    return True


def _traits(t: torch.Tensor) -> tuple:
    storage = t.untyped_storage()
    return (
        *(type(t), t.dtype, t.device, t.layout, t.shape, t.stride(), t.storage_offset()),
        *(t.requires_grad, t.is_inference(), t._base is None, t._use_count()),
        *(storage.nbytes(), storage.resizable(), torch._C._dispatch_keys(t).raw_repr()),
    )
