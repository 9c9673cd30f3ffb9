"""What compiler.py takes from the torch side or, where torch is not installed, in its place."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None:
    from jitshape.torchfree import (
        Assumptions,
        WarmStart,
        allow,
        compile_call,
        disable,
        foreign_mode,
        forget_graphs,
        install,
        is_module,
        is_wrapper,
        noting,
        program_code,
        shadow_setting,
        shadowed,
        wrap_module,
    )
else:
    from jitshape.assumptions import Assumptions
    from jitshape.frontend.calibrate import install
    from jitshape.frontend.capture import program_code
    from jitshape.frontend.torchside.ambient import foreign_mode
    from jitshape.frontend.torchside.natives import allow, disable
    from jitshape.frontend.torchside.varying import noting
    from jitshape.module import is_module, is_wrapper, wrap_module
    from jitshape.pipeline import compile_call
    from jitshape.programs import forget_graphs
    from jitshape.shadow import setting as shadow_setting
    from jitshape.shadow import shadowed
    from jitshape.warm import WarmStart

__all__ = [
    "Assumptions",
    "WarmStart",
    "allow",
    "compile_call",
    "disable",
    "foreign_mode",
    "forget_graphs",
    "install",
    "is_module",
    "is_wrapper",
    "noting",
    "program_code",
    "shadow_setting",
    "shadowed",
    "wrap_module",
]
