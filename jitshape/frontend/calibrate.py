"""Finds and proves where TensorImpl and libc10 keep what guards read.

In: the running torch.  Out: offsets given to _evalframe, the word that stands for (dtype, device),
and readers of ambient state for guard_program.  Every offset is found by a difference that only
it explains, and then the whole is compared with torch's own answers on tensors of many kinds; if
anything disagrees, guards read tensors through `fields`, which asks torch.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from jitshape.frontend import _evalframe
from jitshape.frontend.guard_program import AMBIENT, FAST_AMBIENT

WORD = 8
IMPL_WORDS = 25  # what is surely part of a TensorImpl
DEVICE_TYPES = (  # order of c10::DeviceType
    "cpu cuda mkldnn opengl opencl ideep hip fpga maia xla vulkan metal xpu mps meta hpu ve lazy "
    "ipu mtia privateuseone"
).split()
# The classes of autograd's record of a tensor, and of a view; the method that a view overrides.
RECORDS = (
    "_ZTVN5torch8autograd12AutogradMetaE",
    "_ZTVN5torch8autograd22DifferentiableViewMetaE",
)
REQUIRES_GRAD = 1
AUTOGRAD_STATE = "_ZN3c1013AutogradState13get_tls_stateEv"
LOCAL_KEYS = "_ZN3c104impl26raw_local_dispatch_key_setE"
MODE_READERS = (  # library, symbol
    ("libtorch_cpu.so", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"),
    ("libtorch_cpu.so", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"),
    ("libc10.so", "_ZN3c1017get_default_dtypeEv"),
)
STACK_READERS = (
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv",
)
GRAD_MODE, INFERENCE_MODE = 1, 2  # bits of the autograd state


class NotFound(Exception):
    """The layout is not the one this module knows how to find."""


def words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def only(candidates: Sequence[int], what: str) -> int:
    if len(candidates) != 1:
        raise NotFound(f"{what}: {len(candidates)} candidates")
    return candidates[0]


def impl_words(tensor: torch.Tensor) -> list[int]:
    return words(tensor._cdata, IMPL_WORDS)


def dispatch_keys(tensor: torch.Tensor) -> int:
    return torch._C._dispatch_keys(tensor).raw_repr()


def sample(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """A tensor that the user's default dtype and device do not change."""
    return torch.ones(shape, dtype=dtype, device=device)


@contextmanager
def gradients() -> Iterator[None]:
    """Autograd as it is by default: the first compile may come under no_grad or inference_mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


# ---- (dtype, device)


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The 16 bits that a TensorImpl keeps for a dtype."""
    try:
        return impl_words(sample(0, dtype=dtype))[kind_word()] & 0xFFFF
    except NotFound:  # then only `fields` reads tensors, and any number will do
        return sorted(str(d) for d in vars(torch).values() if type(d) is torch.dtype).index(
            str(dtype)
        )


def tensor_kind(dtype: torch.dtype, device: torch.device) -> int:
    """The word for (dtype, device): dtype code, device type, device index, "has device"."""
    index = 0xFF if device.index is None else device.index
    return dtype_code(dtype) | DEVICE_TYPES.index(device.type) << 16 | index << 24 | 1 << 32


@functools.cache
def kind_word() -> int:
    a, b = sample(3, 5, 7), sample(3, 5, 7, dtype=torch.float64)
    m = sample(3, 5, 7, device="meta")
    meta = DEVICE_TYPES.index("meta")
    found = []
    for i, (x, y, z) in enumerate(zip(impl_words(a), impl_words(b), impl_words(m))):
        same_device = x >> 16 & 0xFFFFFF == y >> 16 & 0xFFFFFF == 0x1FF00
        if same_device and x & 0xFFFF != y & 0xFFFF and z >> 16 & 0xFFFFFF == 0x1FF00 | meta:
            found.append(i)
    return only(found, "dtype and device")


# ---- offsets


def find_sizes() -> tuple[int, int, int]:
    """Word of the first inline size, number of inline sizes, word of the rank."""
    x = impl_words(sample(3, 5, 7))
    first = only([i for i in range(len(x) - 3) if x[i : i + 3] == [3, 5, 7]], "sizes")
    strides = only([i for i in range(len(x) - 3) if x[i : i + 3] == [35, 7, 1]], "strides")
    if x[first - 1] != 3:
        raise NotFound("rank")
    return first, strides - first, first - 1


def find_autograd(keys: int) -> tuple[int, int, int]:
    """Word of the autograd record; in it the byte requires_grad and the word grad_fn."""
    plain, leaf = sample(3, 5), sample(3, 5).requires_grad_()
    a, b = impl_words(plain), impl_words(leaf)
    index = only([i for i in range(keys) if b[i] and not a[i]], "autograd record")

    def record(t: torch.Tensor, size: int = 192) -> bytes:
        return ctypes.string_at(impl_words(t)[index], size)

    on = record(leaf)
    off = record(leaf.requires_grad_(False))
    changed = [i for i in range(len(on)) if on[i] != off[i]]
    flag = only([i for i in changed if (on[i], off[i]) == (1, 0)], "requires_grad")
    result = sample(3, 5).requires_grad_() * 2
    before = [int.from_bytes(record(result)[i : i + 8], "little") for i in range(0, 192, 8)]
    result.detach_()
    after = [int.from_bytes(record(result)[i : i + 8], "little") for i in range(0, 192, 8)]
    pairs = enumerate(zip(before, after))
    gone = [i for i, (x, y) in pairs if x > 1 << 16 and y == 0]
    return index, flag, gone[0] if gone else only(gone, "grad_fn")


def find_offsets() -> tuple[int, ...]:
    """In the order of _tensor.h; bytes."""
    x = sample(3, 5, 7)
    impl = words(id(x), 8).index(x._cdata)
    keys = only([i for i, w in enumerate(impl_words(x)) if w == dispatch_keys(x)], "key set")
    sizes, inline, rank = find_sizes()
    autograd, requires_grad, grad_fn = find_autograd(keys)
    base = sample(9973)
    view, other = torch.as_strided(base, (3, 5), (9, 2), 4001), torch.as_strided(base, (3,), (1,))
    offset = only([i for i, w in enumerate(impl_words(view)) if w == 4001], "storage offset")
    storage = base.untyped_storage()
    holder = only([i for i, w in enumerate(impl_words(other)) if w == storage._cdata], "storage")
    data = words(storage._cdata, 8).index(storage.data_ptr())
    return (
        *(impl * WORD, keys * WORD, autograd * WORD, requires_grad, grad_fn * WORD),
        *(sizes * WORD, inline, rank * WORD, kind_word() * WORD),
        *(offset * WORD, holder * WORD, data * WORD),
    )


def find_view_class() -> tuple[int, int]:
    """The class that the autograd record of a view names, and its answer to "requires grad?": the
    first method in which it differs from the record of other tensors."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    plain, view = (
        ctypes.addressof(ctypes.c_void_p.in_dll(library, name)) + 2 * WORD for name in RECORDS
    )
    methods = list(zip(words(plain, 4), words(view, 4)))
    first = next(i for i, (a, b) in enumerate(methods) if a != b)
    if first != REQUIRES_GRAD:
        raise NotFound("method of a view's autograd record")
    return view, methods[first][1]


# ---- proof


def fields(tensor: torch.Tensor) -> tuple:
    """What guards read, asked of torch: the slow way, and the judge of the fast one."""
    kind = tensor_kind(tensor.dtype, tensor.device)
    return (
        *(dispatch_keys(tensor), kind, tensor.storage_offset()),
        *(tensor.requires_grad, tensor.is_leaf, tensor.untyped_storage().data_ptr()),
        *(tuple(tensor.shape), tuple(tensor.stride())),
    )


def specimens() -> list[torch.Tensor]:
    leaf = sample(4, 6).requires_grad_()
    with torch.inference_mode():
        inference = sample(2, 3)
    kinds = [sample(2, 3, dtype=dtype) for dtype in (torch.int64, torch.bool, torch.bfloat16)]
    return [
        *kinds,
        *(leaf, leaf * 2, (leaf * 2).detach(), leaf.t(), leaf.data, torch.nn.Parameter(kinds[2])),
        *(sample(0), sample(), sample(2, 1, 2, 1, 2, 3).transpose(0, 5)),
        *(sample(1, 2, 3, 4, 5)[..., 2:], sample(3).expand(4, 3), inference),
        _view_of_later_leaf(),
        *(sample(4, 6, device="meta"), sample(3, dtype=torch.complex64).conj()),
    ]


def _view_of_later_leaf() -> torch.Tensor:
    base = sample(4, 6)
    view = base[1:]
    base.requires_grad_()
    return view


def prove() -> None:
    """Compare the direct reads with torch's answers."""
    for tensor in specimens():
        if _evalframe.tensor_view(tensor) != fields(tensor):
            raise NotFound(f"a {tensor.dtype} tensor of rank {tensor.dim()} reads wrongly")
    moved = sample(4, 6)
    for change in (
        lambda: moved.t_(),
        lambda: moved.resize_(2, 3),
        lambda: setattr(moved, "data", sample(5, 7, 1)),
        lambda: moved.requires_grad_(),
    ):
        change()
        if _evalframe.tensor_view(moved) != fields(moved):
            raise NotFound("a change in place is not seen")


@functools.cache
def install() -> bool:
    """Tell _evalframe how to read tensors.  Whether the direct way passed its proof."""
    try:
        with gradients():
            _evalframe.set_tensor_layout(torch.Tensor, fields, True, find_offsets())
            _evalframe.set_view_class(*find_view_class())
            prove()
        direct = True
    except (NotFound, ValueError, IndexError, OSError, StopIteration):
        _evalframe.set_tensor_layout(torch.Tensor, fields, False, (0,) * 12)
        direct = False
    install_ambient()
    return direct


# ---- ambient state


def autograd_bit(mask: int) -> Callable[[Any], tuple[str, int, Any]]:
    return lambda value: ("AUTOGRAD_STATE", mask << 8 | (mask if value else 0), None)


def install_ambient() -> None:
    C = torch._C
    AMBIENT.update(
        {
            "grad_mode": torch.is_grad_enabled,
            "inference_mode": torch.is_inference_mode_enabled,
            "default_dtype": torch.get_default_dtype,
            "deterministic": torch.are_deterministic_algorithms_enabled,
            "autocast": autocast_state,
            "default_device": torch.get_default_device,
            "dispatch_keys": dispatch_key_sets,
            "dispatch_modes": C._len_torch_dispatch_stack,
            "mode_stacks": stacks,
            "functorch": functorch_depth,
        }
    )
    with gradients():
        modes, thread = find_mode_readers(), find_thread_state()
        if find_stack_readers():
            FAST_AMBIENT["mode_stacks"] = lambda value: ("STACKS", value, None)
    if modes:
        FAST_AMBIENT["autocast"] = lambda value: ("AUTOCAST", autocast_word(value), None)
        FAST_AMBIENT["default_dtype"] = lambda value: ("DEFAULT_DTYPE", dtype_code(value), None)
    if thread:
        FAST_AMBIENT["grad_mode"] = autograd_bit(GRAD_MODE)
        FAST_AMBIENT["inference_mode"] = autograd_bit(INFERENCE_MODE)
        FAST_AMBIENT["dispatch_keys"] = lambda value: ("LOCAL_KEYS", 0, value)


def autocast_word(state: tuple) -> int:
    """The value of autocast_state() as one number, see _tensor.h."""
    word = 0
    for enabled, dtype in (state[:2], state[2:]):
        word = word << 16 | int(enabled) << 8 | dtype_code(dtype)
    return word


def find_mode_readers() -> bool:
    """Whether the functions of libtorch that tell autocast and default dtype were found and
    follow the modes as they are switched."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        functions = [getattr(ctypes.CDLL(os.path.join(folder, f)), s) for f, s in MODE_READERS]
    except (OSError, AttributeError):
        return False
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    _evalframe.set_mode_readers(*addresses)

    def agree() -> bool:
        expected = autocast_word(autocast_state()), dtype_code(torch.get_default_dtype())
        return _evalframe.mode_words() == expected

    with torch.autocast("cpu", dtype=torch.float16):
        inside = agree()
    if inside and agree():
        return True
    _evalframe.set_mode_readers(0, 0, 0)
    return False


def stacks() -> int:
    """Function modes and hooks on saved tensors as one number, see _tensor.h."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return torch._C._len_torch_function_stack() << 1 | hooks


def find_stack_readers() -> bool:
    """Whether the functions of libtorch that tell these were found and follow them."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        library = ctypes.CDLL(os.path.join(folder, "libtorch_cpu.so"))
        functions = [getattr(library, symbol) for symbol in STACK_READERS]
    except (OSError, AttributeError):
        return False
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    _evalframe.set_stack_readers(*addresses)

    def agree(depth: int = 0) -> bool:
        if depth == 20:  # past the first block of a deque
            return _evalframe.stacks() == stacks()
        mode = torch.overrides.BaseTorchFunctionMode
        with torch.autograd.graph.saved_tensors_hooks(_same, _same), mode():
            inside = _evalframe.stacks() == stacks() and agree(depth + 1)
        return inside and _evalframe.stacks() == stacks()

    try:
        if agree():
            return True
    except RuntimeError:  # a transform forbids hooks for now
        pass
    _evalframe.set_stack_readers(0, 0)
    return False


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def autograd_bytes(library: str) -> bytes:
    """The start of this thread's autograd state."""
    function = getattr(ctypes.CDLL(library), AUTOGRAD_STATE)
    function.restype = ctypes.c_void_p
    return ctypes.string_at(function(), 48)


def find_thread_state() -> bool:
    """Whether the symbols of libc10 were found and follow the modes as they are switched."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    states = []
    try:
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                states.append(autograd_bytes(library))
    except (OSError, AttributeError):
        return False
    mask = GRAD_MODE | INFERENCE_MODE
    expected = (GRAD_MODE, 0, INFERENCE_MODE)
    found = [i for i, bits in enumerate(zip(*states)) if tuple(b & mask for b in bits) == expected]
    if len(found) != 1:
        return False
    if not _evalframe.set_thread_state(library, AUTOGRAD_STATE, LOCAL_KEYS, found[0]):
        return False
    outside = _evalframe.thread_state()
    with torch.inference_mode():
        inside = _evalframe.thread_state()
    return inside[1:] != outside[1:] and _evalframe.thread_state() == outside


def dispatch_key_sets() -> tuple[int, int]:
    """The thread's (included, excluded) key sets: autocast, modes, functorch show here."""
    state = _evalframe.thread_state()
    if state is not None:
        return state[1:]
    C = torch._C
    return (
        C._dispatch_tls_local_include_set().raw_repr(),
        C._dispatch_tls_local_exclude_set().raw_repr(),
    )


def autocast_state() -> tuple:
    """(enabled, dtype) of the devices that can be autocast here."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
    )


def functorch_depth() -> int:
    level = torch._C._functorch.maybe_current_level()
    return 0 if level is None else level
