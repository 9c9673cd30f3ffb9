"""The processor that CPU code is made for, as LLVM names it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Host:
    """The processor code is made for; `lanes` f32 fit one register."""

    name: str
    features: str
    triple: str
    lanes: int


@functools.cache
def host() -> Host:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else (8 if features.get("avx2") else 4)
    return Host(llvm.get_host_cpu_name(), features.flatten(), llvm.get_process_triple(), lanes)


def llvm_version() -> str:
    return ".".join(map(str, llvm.llvm_version_info))
