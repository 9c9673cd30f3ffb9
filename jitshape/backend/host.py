"""The processor that CPU code is made for, as LLVM names it.  LLVM is loaded when it is asked for:
programs for GPUs do without."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Host:
    """The processor code is made for; `lanes` f32 fit one register."""

    name: str
    features: str
    triple: str
    lanes: int


@functools.cache
def host() -> Host:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else (8 if features.get("avx2") else 4)
    return Host(llvm.get_host_cpu_name(), features.flatten(), llvm.get_process_triple(), lanes)


def llvm_facts() -> tuple[str, str]:
    """The versions of LLVM, and the processor that it finds; empty where it is not installed."""
    if find_spec("llvmlite") is None:
        return "", ""
    import llvmlite
    import llvmlite.binding as llvm

    here, version = host(), ".".join(map(str, llvm.llvm_version_info))
    return f"{llvmlite.__version__} {version}", f"{here.triple} {here.name} {here.features}"
