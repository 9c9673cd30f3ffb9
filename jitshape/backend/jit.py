"""Kernels to machine code, in this process, through llvmlite.

In: kernels.  Out: a `Launcher` each; all kernels of one call share a module and an engine.
Invariant: the engine, and with it the code, lives exactly as long as a launcher does; nothing of
the process is changed but the table of symbols that LLVM may link to.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from jitshape import forks
from jitshape.backend import runtime
from jitshape.backend.codegen.cpu import write_kernel
from jitshape.backend.host import host
from jitshape.backend.loops import Kernel

if TYPE_CHECKING:
    from jitshape.cache.store import Store

LEVEL = "kernel"  # of the store
_lock = forks.lock(settled=True)  # llvmlite's own calls are serialised anyway


class Engine:
    """Owns the machine code of one module; launchers keep it alive."""

    def __init__(self, text: str, object_code: bytes | None = None) -> None:
        """From LLVM IR, or from the object code of an earlier engine."""
        self.text, self.object_code = text, object_code
        runtime.bind_symbols(llvm.add_symbol, object_code)
        with _lock:
            machine = _target_machine()
            module = llvm.parse_assembly(text if object_code is None else "")
            if object_code is None:
                _optimise(module, machine)
            self._engine = llvm.create_mcjit_compiler(module, machine, use_lmm=_lies_together())
            written: list[bytes] = []  # no method: the engine would be part of a cycle
            if object_code is None:
                self._engine.set_object_cache(lambda module, code: written.append(bytes(code)))
            else:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
            self._engine.finalize_object()
            if written:
                (self.object_code,) = written

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not is_finalizing():  # llvmlite may be gone by then
            engine.close()


def _target_machine() -> llvm.TargetMachine:
    """A new one for each engine, which takes it over.  At level 1 the code is as fast as at 2,
    and made in three quarters of the time."""
    h = host()
    near = {"reloc": "pic", "codemodel": "small"} if _lies_together() else {}
    target = llvm.Target.from_triple(h.triple)
    return target.create_target_machine(cpu=h.name, features=h.features, opt=1, jit=True, **near)


def _lies_together() -> bool:
    """Whether code and constants of an engine lie in one piece of memory, so that instructions
    read constants at 32-bit distances, without a register for each address.  Functions outside
    are then called through a table (`nonlazybind`, `RtLibUseGOT`): nothing is added to the piece
    when it is linked."""
    return host().triple.startswith("x86_64") and "linux" in host().triple


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Few passes: the text is already vectorised, unrolled and free of common subexpressions."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_simplify_pass()
    passes.add_lcssa_pass()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)


def module_text(kernels: Sequence[Kernel]) -> str:
    """The LLVM IR of the kernels and of the driver they share."""
    return _assemble(*_write(kernels))


def _write(kernels: Sequence[Kernel]) -> tuple[list[str], set[str]]:
    """(the text of each kernel, the declarations they need)"""
    declarations: set[str] = set()
    return [write_kernel(kernel, host().lanes, declarations) for kernel in kernels], declarations


def _assemble(sources: Sequence[str], declarations: set[str]) -> str:
    width = 32 * host().lanes
    parts = (
        f'target triple = "{host().triple}"',
        *sorted(declarations),
        runtime.driver_text(),
        *sources,
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" }}',
        '!llvm.module.flags = !{!0}\n!0 = !{i32 7, !"RtLibUseGOT", i32 1}\n',
    )
    return "\n".join(parts)


def compile_kernels(
    kernels: Sequence[Kernel], store: Store | None = None
) -> list[runtime.Launcher]:
    """One module and one engine for all; names must differ.  Code that `store` has is not made
    again."""
    names = [kernel.name for kernel in kernels]
    assert len(set(names)) == len(names), f"kernels of one module need different names: {names}"
    if not kernels:
        return []
    sources, declarations = _write(kernels)
    engine = _engine(_assemble(sources, declarations), store)
    signatures = map(runtime.signature_of, kernels)
    return [runtime.make_launcher(s, engine, source) for s, source in zip(signatures, sources)]


def _engine(text: str, store: Store | None) -> Engine:
    if store is None:
        return Engine(text)
    lines = (line for line in text.splitlines() if not line.startswith(";"))  # no user's lines
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    code = store.get(LEVEL, key)
    if code is not None:
        return Engine(text, code)
    engine = Engine(text)
    if engine.object_code is not None:
        store.put(LEVEL, key, engine.object_code)
    return engine


def link_kernels(kernels: Sequence[Kernel], object_code: bytes) -> list[runtime.Launcher]:
    """Launchers for code kept from an earlier `compile_kernels` (`launcher.engine.object_code`)."""
    engine = Engine("", object_code)
    return [runtime.make_launcher(runtime.signature_of(kernel), engine) for kernel in kernels]
