"""Which torch callables run natively on symbolic tensors while tracing, and which must not.

In: a real callable.  Out: `policy(fn)`: "native" (runs on symbolic arguments; reads nothing but
its arguments and tabled ambient state), "ambient" (reads or writes state this module tables),
"answer" (its result is tabled),
"break" (must run outside the graph), or None (not torch's: the machine inlines it).
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Hashable
from typing import Any

import torch
import torch._higher_order_ops as higher_order

import jitshape.api
from jitshape.frontend.torchside.autocast import set_autocast

# Python functions of torch that only arrange calls of the dispatcher.  Whole modules, less
# what INLINE and BREAKS name.
NATIVE_MODULES = (
    "torch",
    "torch._tensor",
    "torch._VF",
    "torch.functional",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch.nn._reduction",
    "torch.masked._ops",
    "torch.overrides",
    "torch._C",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._fft",
    "torch._ops",
    "torch._jit_internal",
)

# Reads of ambient state: the name of the Ambient check that guards them.
AMBIENT_READS: dict[Any, str] = {
    torch.is_grad_enabled: "grad_mode",
    torch.is_inference_mode_enabled: "inference_mode",
    torch.get_default_dtype: "default_dtype",
    torch.is_autocast_enabled: "autocast",
    torch.are_deterministic_algorithms_enabled: "deterministic",
    torch.get_autocast_dtype: "autocast",
    torch.is_autocast_cache_enabled: "autocast",
    torch.is_autocast_cpu_enabled: "autocast",
    torch.get_autocast_cpu_dtype: "autocast",
    torch.get_autocast_gpu_dtype: "autocast",
}

# Writes of ambient state: done for real while tracing (recording depends on them), undone after
# the trace, and written again by the compiled code.
AMBIENT_WRITES: dict[Any, str] = {
    torch._C._set_grad_enabled: "grad_mode",
    torch.set_autocast_enabled: "autocast",
    torch.set_autocast_dtype: "autocast",
    torch.set_autocast_cache_enabled: "autocast",
    torch.autocast_increment_nesting: "autocast",
    torch.autocast_decrement_nesting: "autocast",
    torch.clear_autocast_cache: "autocast",
}

# What a program that asks is told while it is traced.
ANSWERS: dict[Any, Any] = {
    torch.compiler.is_compiling: True,
    torch.compiler.is_exporting: False,
    torch.jit.is_tracing: False,
    torch.jit.is_scripting: False,
    torch._jit_internal.is_scripting: False,
    torch._C._get_tracing_state: None,
    torch.cuda.is_current_stream_capturing: False,
    jitshape.api.is_compiling: True,
}

AMBIENT_SETTERS: dict[str, Any] = {
    "grad_mode": torch._C._set_grad_enabled,
    "autocast": set_autocast,
}

# Other functions of C whose names say that they write global state.
_WRITES_STATE = re.compile(
    "_?(set|push|pop|enter|exit|increment|decrement|clear|enable|disable|register|unregister"
    "|activate|init|reset)_"
)

# Those that tell global state, less what a trace is itself: modes, the stack of dispatch.
_OF_A_TRACE = "trac|mode_|stack|dispatch|functorch|torch_function"
_TELLS_STATE = re.compile(f"_?(get|is|are)_(?!.*({_OF_A_TRACE}))")

_REASON_RUN = "it must see real tensors"
BREAKS: dict[Any, str] = {
    torch.Tensor.backward: "it runs autograd on tensors of the graph",
    torch.Tensor.retain_grad: "the gradient would be that of the graph's end only",
    torch.autograd.backward: "it runs autograd on tensors of the graph",
    torch.autograd.grad: "it runs autograd on tensors of the graph",
    torch.Tensor.numpy: _REASON_RUN,
    torch.Tensor.data_ptr: _REASON_RUN,
    torch.Tensor.__repr__: _REASON_RUN,
    torch.Tensor.__format__: _REASON_RUN,
    torch.Tensor.__array__: _REASON_RUN,
    torch.Tensor.__deepcopy__: _REASON_RUN,
    torch.Tensor.__reduce_ex__: _REASON_RUN,
    torch.Tensor.share_memory_: _REASON_RUN,
    torch._C._autograd._push_saved_tensors_default_hooks: "hooks would see tensors of the graph",
    torch.inference_mode.__enter__: "tensors made in inference mode are of another kind",
    torch.inference_mode.__exit__: "tensors made in inference mode are of another kind",
    torch.from_numpy: _REASON_RUN,
    torch.save: "input and output",
    torch.load: "input and output",
    torch.seed: "it sets the state of the random generator",
    torch.set_default_dtype: "it changes global state",
    torch.set_default_device: "it changes global state",
    torch.set_num_threads: "it changes global state",
    torch.compile: "nested torch.compile",
}
for _higher in (higher_order.scan, higher_order.map):
    BREAKS[_higher] = "torch compiles the functions it is given itself"
for _mark in ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked"):
    BREAKS[getattr(jitshape.api, _mark)] = "it marks a real tensor; mark it outside of the function"

_TENSOR_CLASSES = tuple(cls for cls in torch.Tensor.__mro__ if cls is not object)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def lookup(table: dict[Any, Any], fn: Any) -> Any:
    """`table[fn]`, or None also for what cannot be hashed."""
    try:
        return table.get(fn)
    except TypeError:
        return None


_ALLOWED: dict[Any, bool] = {}  # by allow_in_graph


def disable(fn: Any) -> None:
    """From now on a call of `fn` is a break."""
    BREAKS[fn] = "it is marked jitshape.disable"


def allow(fn: Any) -> None:
    """From now on `fn` runs natively on symbolic tensors."""
    _ALLOWED[fn] = True


def is_allowed(fn: Any) -> bool:
    """Whether it is marked allow_in_graph."""
    return bool(lookup(_ALLOWED, fn))


def tells_state(fn: Any) -> bool:
    """Whether a native function, called without tensors, may read state that no table has."""
    return _TELLS_STATE.match(getattr(fn, "__name__", "")) is not None


def behind_switch(fn: types.FunctionType) -> Any:
    """The function that `fn` calls, where torch made `fn` to switch its own compiler on or off
    meanwhile; None for other functions, also those that wrap such a one."""
    behind = vars(fn).get("_torchdynamo_orig_callable")
    if behind is None or "fn" not in fn.__code__.co_freevars:
        return None
    return behind if inspect.getclosurevars(fn).nonlocals.get("fn") is behind else None


def _why_switched(fn: types.FunctionType) -> str | None:
    """Why what stands behind a switch is not traced.  What torch says of its own functions is meant
    for its own compiler."""
    behind = behind_switch(fn)
    if behind is None or (getattr(behind, "__module__", None) or "").startswith("torch."):
        return None
    off = "_torchdynamo_disable" in vars(fn)
    return "it is marked torch.compiler.disable" if off else BREAKS[torch.compile]


def why_break(fn: Any) -> str | None:
    """Why a callable of policy "break" must run outside the graph."""
    reason = lookup(BREAKS, fn)
    if reason is None and isinstance(fn, types.FunctionType):
        return _why_switched(fn)
    if reason is None and isinstance(fn, types.BuiltinFunctionType):
        if _WRITES_STATE.match(fn.__name__) and not isinstance(fn.__self__, (type, torch.Tensor)):
            return "it changes global state"
    return reason


def policy(fn: Any) -> str | None:
    """How the machine treats the callable `fn`; None: not a callable of torch's."""
    if is_allowed(fn):
        return "native"
    if lookup(BREAKS, fn) is not None or (isinstance(fn, types.FunctionType) and why_break(fn)):
        return "break"
    if isinstance(fn, Hashable) and fn in ANSWERS:
        return "answer"
    if lookup(AMBIENT_READS, fn) or lookup(AMBIENT_WRITES, fn):
        return "ambient"
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return "native"
    if isinstance(fn, types.FunctionType):
        return "native" if fn.__module__ in NATIVE_MODULES else None
    if isinstance(fn, _BUILTIN):
        if getattr(fn, "__objclass__", None) in _TENSOR_CLASSES:
            return "native"
        module = getattr(fn, "__module__", None)
        if not module or module.partition(".")[0] != "torch":
            return None
        return "break" if why_break(fn) else "native"
    return None
