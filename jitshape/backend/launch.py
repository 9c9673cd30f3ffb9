"""Targets: what turns kernels into things that can be launched.

In: the kernels of one program.  Out: a launcher for each, called with the tensors of
`Kernel.buffers` (scratch left out), then the sizes, then the scalars.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jitshape.backend.loops import Kernel

if TYPE_CHECKING:
    from jitshape.cache.store import Store

Launcher = Callable[..., None]

# A target's module has `compile_kernels(kernels, store) -> list[Launcher]`.
TARGETS = {
    "cpu": "jitshape.backend.jit",
    "triton": "jitshape.backend.triton_jit",
    "interpret": "jitshape.backend.launch",
}


class Interpreted:
    """Launches a kernel through the numpy interpreter."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = sum(buffer.role != "scratch" for buffer in kernel.buffers)
        self.source = ""

    def __call__(self, *args: Any) -> None:
        from jitshape.backend.interpret import interpret

        sizes = self.buffers + len(self.kernel.sizes)
        interpret(self.kernel, args[: self.buffers], args[self.buffers : sizes], args[sizes:])


def compile_kernels(kernels: Sequence[Kernel], store: Store | None = None) -> list[Launcher]:
    """Launchers that interpret."""
    return [Interpreted(kernel) for kernel in kernels]


def launchers(target: str, kernels: Sequence[Kernel], store: Store | None = None) -> list[Launcher]:
    """Launchers of `kernels` on a target; `store` keeps their code for later processes."""
    if not kernels:
        return []
    return importlib.import_module(TARGETS[target]).compile_kernels(kernels, store)
