"""Options: one frozen record per compile, and the only reader of JITSHAPE_* variables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from jitshape.dims import ShapeSpec
from jitshape.errors import BadSpec, UnknownOption

BACKENDS = ("auto", "cpu", "triton", "eager")
MODES = ("default", "reduce-overhead")


@dataclass(frozen=True)
class Options:
    """Everything a compile is asked for.  `dynamic` None: static at first, dynamic on the first
    change; True: dynamic from the start; False: static."""

    dynamic: bool | None = None
    fullgraph: bool = False
    backend: str | Callable = "auto"
    mode: str = "default"
    suppress_errors: bool = False
    recompile_limit: int = 16
    unroll_limit: int = 4096
    memory_plan: bool = True
    fast_random: bool = False
    cache: bool = True
    name: str | None = None
    dynamic_shapes: ShapeSpec | None = None


SETTABLE = (
    *("suppress_errors", "recompile_limit", "unroll_limit", "memory_plan", "fast_random"),
    "cache",
)


def make_options(options: Mapping[str, Any] | None = None, **named: Any) -> Options:
    """Check names and values; `options` is the user's `options={...}`."""
    if options is not None and not isinstance(options, Mapping):
        raise UnknownOption(
            f"options={options!r}",
            because="it must be a dict",
            avoid=f"pass options={{name: value}} with names of {', '.join(SETTABLE)}",
        )
    for key in options or {}:
        if key not in SETTABLE:
            raise UnknownOption(
                f"unknown option {key!r}",
                because=f"options may hold {', '.join(SETTABLE)}",
                avoid="remove it or correct its spelling",
            )
    result = Options(**named, **(options or {}))
    result = replace(result, backend=_backend(result.backend))
    _check("mode", result.mode, MODES)
    _check("dynamic", result.dynamic, (None, True, False))
    if result.name is not None and type(result.name) is not str:
        raise UnknownOption(f"name={result.name!r}", because="it must be a str")
    if result.dynamic is False and result.dynamic_shapes is not None:
        raise BadSpec("dynamic=False contradicts dynamic_shapes", avoid="remove one of them")
    for field in fields(Options):
        value = getattr(result, field.name)
        if field.type == "bool" and type(value) is not bool:
            _check(field.name, value, (True, False))
        if field.type == "int" and (type(value) is not int or value < 1):
            raise UnknownOption(f"{field.name}={value!r}", because="it must be a positive integer")
    return result


def _backend(backend: Any) -> str | Callable:
    """One of BACKENDS or a callable, which the name of one of torch's back ends stands for."""
    if type(backend) is str and backend not in BACKENDS:
        from jitshape.interop.torch_backends import TorchBackend, torch_backends

        if backend in torch_backends():
            return TorchBackend(backend)
        _check("backend", backend, (*BACKENDS, *torch_backends()))
    _check("backend", backend, BACKENDS, callable(backend))
    return backend


def _check(name: str, value: Any, allowed: tuple, also: bool = False) -> None:
    if not also and not any(value is a or (type(value) is str and value == a) for a in allowed):
        listed = ", ".join(repr(a) for a in allowed)
        raise UnknownOption(
            f"{name}={value!r} is not known", because=f"{name} may be {listed}", avoid="use one"
        )


def environment(name: str, default: str = "") -> str:
    """The value of JITSHAPE_<name>."""
    return os.environ.get(f"JITSHAPE_{name}", default)


def switched(name: str, default: bool = False) -> bool:
    """JITSHAPE_<name> as a switch: "0", "false", "no" and "off" turn it off, all else on."""
    text = environment(name).strip().lower()
    return default if not text else text not in ("0", "false", "no", "off")


def cache_folder() -> Path:
    """Where things are kept from run to run: JITSHAPE_CACHE_DIR, or the user's cache folder."""
    named = environment("CACHE_DIR")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jitshape"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"jitshape-{os.getuid()}"
