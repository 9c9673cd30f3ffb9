"""The order in which passes run."""

from __future__ import annotations

from jitshape.ir.passes.cse import cse
from jitshape.ir.passes.dce import dce
from jitshape.ir.passes.decompose import decompose
from jitshape.ir.passes.functionalize import functionalize
from jitshape.ir.passes.simplify import simplify

OPTIMIZE = (functionalize, decompose, simplify, cse, dce)  # a recorded graph
CLEAN_UP = (simplify, cse, dce)  # a graph that changed after that
