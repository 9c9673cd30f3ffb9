"""Random kernels: machine code against the interpreter."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.backend.interpret import interpret
from jitshape.backend.jit import compile_kernels
from jitshape.backend.loops import Accumulator, Axis, Buffer, Carry, Kernel, Load, Loop, Store
from jitshape.ir.symint import Algebra
from tests.backend.kernels import lit, op

F32 = torch.float32
BINARY = ("add", "sub", "mul", "maximum", "minimum")
UNARY = ("neg", "abs", "floor", "tanh", "sigmoid", "sin")


class Draw:
    """Draws one kernel over x[rows, columns], y[columns], z[rows]."""

    def __init__(self, data):
        self.data, self.algebra = data, Algebra()
        names = ("s0", "s1", "i0", "i1")
        self.m, self.n, self.r, self.c = (self.algebra.symbol(name) for name in names)
        self.x, self.y, self.z = (Buffer(name, F32) for name in "xyz")
        self.out, self.last = Buffer("out", F32, "out"), Buffer("last", F32, "out")

    def value(self, known, depth=3):
        kind = self.data.draw(st.integers(0, 9))
        if depth == 0 or kind < 3:
            return self.data.draw(st.sampled_from(known))
        if kind < 6:
            name = self.data.draw(st.sampled_from(UNARY))
            return op(name, self.value(known, depth - 1))
        name = self.data.draw(st.sampled_from(BINARY))
        return op(name, self.value(known, depth - 1), self.value(known, depth - 1))

    def kernel(self):
        rows_inside = self.data.draw(st.booleans())  # else the columns
        outer, inner = (self.c, self.n), (self.r, self.m)
        if not rows_inside:
            outer, inner = inner, outer
        turned = self.data.draw(st.booleans())
        at = self.c * self.m + self.r if turned else self.r * self.n + self.c
        known = [Load(self.x, at), Load(self.y, self.c), Load(self.z, self.r), lit(0.5)]
        kind = "serial" if rows_inside else self.data.draw(st.sampled_from(("vector", "serial")))
        axis = Axis(inner[0], inner[1], kind)
        statements = []
        for number in range(self.data.draw(st.integers(1, 2))):
            combine = self.data.draw(st.sampled_from(("sum", "max", "min")))
            acc = Accumulator(f"acc{number}", combine, self.value(known), F32)
            statements.append(Loop(axis, (), (acc,)))
            known.append(Carry(acc))
        statements.append(Store(self.last, outer[0], Carry(acc)))
        statements.append(Loop(axis, (Store(self.out, at, self.value(known)),)))
        grid, body = (Axis(*outer),), tuple(statements)
        if rows_inside and self.data.draw(st.booleans()):
            grid, body = (), (Loop(Axis(*outer, "vector"), body),)
        buffers = (self.x, self.y, self.z, self.out, self.last)
        return Kernel("random", grid, body, buffers, (self.m.symbol, self.n.symbol)), rows_inside


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_kernel_agrees_with_the_interpreter(data):
    kernel, rows_inside = Draw(data).kernel()
    (launch,) = compile_kernels([kernel])
    for m, n in ((3, 5), (1, 40), (19, 37), (0, 4), (4, 0)):
        torch.manual_seed(m)
        inputs = torch.randn(m, n), torch.randn(n), torch.randn(m)
        results = []
        for run in (launch, lambda *args: interpret(kernel, args[:5], args[5:])):
            outs = torch.zeros(m, n), torch.zeros(n if rows_inside else m)
            run(*inputs, *outs, m, n)
            results.append(outs)
        for found, expected in zip(*results):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
