"""Handlers of every bytecode instruction, grouped by what they touch; importing registers them."""

from jitshape.frontend.opcodes import (  # noqa: F401
    calls,
    containers,
    control,
    exceptions,
    generators,
    operators,
    patterns,
    variables,
)
