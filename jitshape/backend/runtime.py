"""What compiled kernels need while they run: threads, library symbols, launchers.

In: a kernel and the engine that holds its code.  Out: a `Launcher`, called as
`launcher(*tensors, *sizes, *scalars)`, in the kernel's order, scratch buffers left out.
Invariant: a launcher keeps its engine alive; threads are torch's own (the OpenMP runtime that is
already in the process), so `torch.set_num_threads` is obeyed.
"""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from jitshape.backend import _launch
from jitshape.backend._launch import Launcher
from jitshape.backend.loops import Kernel

SERIAL_BELOW = 32768  # elements; starting threads costs as much as these
_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


@functools.cache
def openmp() -> dict[str, int]:
    """Addresses of the OpenMP functions in this process; empty, with a warning, if it has none."""
    found: dict[str, int] = {}
    for library in chain([ctypes.CDLL(None)], _loaded("libgomp", "libiomp", "libomp")):
        try:
            found = {name: _address(library, name) for name in _OPENMP}
            break
        except AttributeError:
            continue
    if not found:
        warnings.warn(
            "jitshape: no OpenMP runtime found; CPU kernels run on one thread", stacklevel=2
        )
    return found


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _loaded(*names: str) -> Iterator[ctypes.CDLL]:
    """Libraries of these names that are in the process already."""
    try:
        with open("/proc/self/maps") as maps:
            paths = set(re.findall(rf"(?m)/.*(?:{'|'.join(names)}).*$", maps.read()))
    except OSError:
        return
    yield from (ctypes.CDLL(path) for path in sorted(paths) if ".so" in path)


@functools.cache
def _libraries() -> list[ctypes.CDLL]:
    return [ctypes.CDLL("libm.so.6"), ctypes.CDLL(None)]


_MATH = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc pow atan2 fmod fma"
).split()


_FUNCTIONS = (*(name + end for name in _MATH for end in ("", "f")), "malloc", "free", *_OPENMP)
_bound: set[str] = set()


def bind_symbols(add_symbol: Callable[[str, int], Any], code: bytes | None) -> None:
    """Tell LLVM where the functions are that kernels call: those that object code names, or all."""
    for name in _FUNCTIONS:
        if name not in _bound and (code is None or name.encode() in code):
            address = _function(name)
            if address is not None:
                add_symbol(name, address)
            _bound.add(name)


def _function(name: str) -> int | None:
    """None: of OpenMP, which this process is without."""
    if name in _OPENMP:
        return openmp().get(name)
    libm, libc = _libraries()
    return _address(libc if name in ("malloc", "free") else libm, name)


def driver_text() -> str:
    """LLVM IR of the function that runs a kernel's body over its grid."""
    return (_PARALLEL if openmp() else _SERIAL).replace("SERIAL_BELOW", str(SERIAL_BELOW))


_PARALLEL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32) nonlazybind
declare i32 @omp_get_thread_num() nonlazybind
declare i32 @omp_get_num_threads() nonlazybind
declare i32 @omp_get_max_threads() nonlazybind
%task = type { ptr, ptr, ptr, ptr, i64 }

define internal void @jitshape.part(ptr %t) #0 {
  %body = load ptr, ptr %t
  %p1 = getelementptr %task, ptr %t, i64 0, i32 1
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr %task, ptr %t, i64 0, i32 2
  %sizes = load ptr, ptr %p2
  %p3 = getelementptr %task, ptr %t, i64 0, i32 3
  %scalars = load ptr, ptr %p3
  %p4 = getelementptr %task, ptr %t, i64 0, i32 4
  %items = load i64, ptr %p4
  %me0 = call i32 @omp_get_thread_num()
  %me = sext i32 %me0 to i64
  %all0 = call i32 @omp_get_num_threads()
  %all = sext i32 %all0 to i64
  %a = mul i64 %me, %items
  %lo = sdiv i64 %a, %all
  %next = add i64 %me, 1
  %b = mul i64 %next, %items
  %hi = sdiv i64 %b, %all
  call void %body(ptr %buffers, ptr %sizes, ptr %scalars, i64 %lo, i64 %hi)
  ret void
}

define internal i64 @jitshape.threads() #0 {
  %threads = call i32 @omp_get_max_threads()
  %all = sext i32 %threads to i64
  ret i64 %all
}

define internal void @jitshape.parallel(ptr %body, ptr %buffers, ptr %sizes, 
    ptr %scalars, i64 %items, i64 %work) #0 {
  %small = icmp slt i64 %work, SERIAL_BELOW
  %single = icmp slt i64 %items, 2
  %no = or i1 %small, %single
  br i1 %no, label %serial, label %ask
ask:
  %threads = call i32 @omp_get_max_threads()
  %one = icmp slt i32 %threads, 2
  br i1 %one, label %serial, label %parallel
serial:
  call void %body(ptr %buffers, ptr %sizes, ptr %scalars, i64 0, i64 %items)
  ret void
parallel:
  %t = alloca %task
  store ptr %body, ptr %t
  %p1 = getelementptr %task, ptr %t, i64 0, i32 1
  store ptr %buffers, ptr %p1
  %p2 = getelementptr %task, ptr %t, i64 0, i32 2
  store ptr %sizes, ptr %p2
  %p3 = getelementptr %task, ptr %t, i64 0, i32 3
  store ptr %scalars, ptr %p3
  %p4 = getelementptr %task, ptr %t, i64 0, i32 4
  store i64 %items, ptr %p4
  call void @GOMP_parallel(ptr @jitshape.part, ptr %t, i32 0, i32 0)
  ret void
}
"""
_SERIAL = """
define internal i64 @jitshape.threads() #0 {
  ret i64 1
}

define internal void @jitshape.parallel(ptr %body, ptr %buffers, ptr %sizes, 
    ptr %scalars, i64 %items, i64 %work) #0 {
  call void %body(ptr %buffers, ptr %sizes, ptr %scalars, i64 0, i64 %items)
  ret void
}
"""


@dataclass(frozen=True)
class Signature:
    """What a kernel is called with: so many tensors and sizes, then scalars; of each of these,
    whether it is a double (1) or an integer (0)."""

    name: str
    tensors: int
    sizes: int
    floats: bytes


def signature_of(kernel: Kernel) -> Signature:
    tensors = sum(buffer.role != "scratch" for buffer in kernel.buffers)
    floats = bytes(dtype.is_floating_point for dtype in kernel.scalars)
    return Signature(kernel.name, tensors, len(kernel.sizes), floats)


def make_launcher(kernel: Signature, engine: Any, source: str = "") -> Launcher:
    """The callable for `kernel`, whose code `engine` holds; `source` is for people."""
    read_tensors_directly()
    address = engine.address(kernel.name)
    return Launcher(
        kernel.name, address, kernel.tensors, kernel.sizes, kernel.floats, engine, source
    )


@functools.cache
def read_tensors_directly() -> bool:
    """Let launchers read data pointers through torch's DLPack table, if it proves right."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None or not _launch.use_exchange(table):
        return False
    base = torch.arange(12.0).reshape(3, 4)
    samples = (
        base,
        base[1:, 1:],
        base.t(),
        torch.empty(0),
        torch.nn.Parameter(base),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.bool),
    )
    if all(_launch.data_address(t) == t.data_ptr() for t in samples):
        return True
    _launch.use_exchange(None)
    return False
