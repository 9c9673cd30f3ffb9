"""C-like text of a loop IR kernel.

In: a `Kernel`.  Out: text that names every parameter, loop, accumulator, load and store; it is
the header of generated code, the log entry and the golden file.
Invariant: the text follows the order of the kernel only, so equal kernels print equal text.  A
scalar used once is printed in place; one used more often, or grown too long, gets a name in the
innermost block whose loops enclose it.
"""

from __future__ import annotations

from jitshape.backend import loops
from jitshape.backend.loops import Kernel, Loop, Scalar, Statement, Store
from jitshape.ir.symint import Size
from jitshape.ir.types import SHORT

INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"},
}
LONGEST = 72  # columns of an expression before it gets a name


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel."""
    return _Writer(kernel).text()


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 0
        self.uses = _count_uses(kernel)
        self.names: list[dict[Scalar, str]] = [{}]
        self.count = 0
        inside = [s for s in kernel.statements() if isinstance(s, Loop)]
        self.taken = {acc.name for loop in inside for acc in loop.accumulators}
        self.taken |= {buffer.name for buffer in kernel.buffers}

    def text(self) -> str:
        kernel = self.kernel
        buffers = [f"{b.role} {SHORT[b.dtype]} {b.name}" for b in kernel.buffers]
        sizes = [f"size {atom.name}" for atom in kernel.sizes]
        scalars = [f"{SHORT[dtype]} a{i}" for i, dtype in enumerate(kernel.scalars)]
        for origin in kernel.origin:
            self.line(f"# {origin}")
        self.line(f"kernel {kernel.name}({', '.join(buffers + sizes + scalars)}):")
        for atom, factor in kernel.facts:
            self.line(f"  assume {atom.name} % {factor} == 0")
        for axis in kernel.grid:
            self.depth += 1
            self.line(f"{axis.kind} {axis.symbol} < {axis.extent}:")
        self.block(kernel.body)
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def block(self, body: tuple[Statement, ...], loop: Loop | None = None) -> None:
        self.depth += 1
        self.names.append({})
        early = loops.running(loop) if loop else ()
        accumulators = loop.accumulators if loop else ()
        for acc in accumulators:
            if acc in early:
                self.line(f"{acc.name} {acc.combine}= {self.scalar(acc.value, top=True)}")
        for statement in body:
            if isinstance(statement, Store):
                self.store(statement)
            else:
                self.loop(statement)
        for acc in accumulators:
            if acc not in early:
                self.line(f"{acc.name} {acc.combine}= {self.scalar(acc.value, top=True)}")
        self.names.pop()
        self.depth -= 1

    def loop(self, loop: Loop) -> None:
        for acc in loop.accumulators:
            self.line(f"{SHORT[acc.dtype]} {acc.name} = {acc.combine}()")
        self.line(f"{loop.axis.kind} {loop.axis.symbol} < {loop.axis.extent}:")
        self.block(loop.body, loop)

    def store(self, store: Store) -> None:
        value = self.scalar(store.value, top=True)
        place = f"{store.buffer.name}[{self.index(store.index, store.indirect)}]"
        text = f"{place} {'+=' if store.add else '='} {value}"
        if store.mask is not None:
            text += f" if {self.scalar(store.mask)}"
        self.line(text)

    def index(self, index: Size, indirect: tuple) -> str:
        bound = [f"{atom.name}={self.scalar(value, top=True)}" for atom, value in indirect]
        return str(index) + (f"; {', '.join(bound)}" if bound else "")

    def scalar(self, scalar: Scalar, top: bool = False) -> str:
        for scope in reversed(self.names):
            if scalar in scope:
                return scope[scalar]
        text = _PRINT[type(scalar)](self, scalar)
        named = isinstance(scalar, loops.Load | loops.Apply)
        if named and (self.uses[scalar] > 1 or (len(text) > LONGEST and not top)):
            name = self.names[-1][scalar] = self._fresh()
            self.line(f"{SHORT[scalar.dtype]} {name} = {_bare(text)}")
            return name
        return _bare(text) if top else text

    def _fresh(self) -> str:
        while True:
            self.count += 1
            if f"t{self.count - 1}" not in self.taken:
                return f"t{self.count - 1}"

    def load(self, load: loops.Load) -> str:
        text = f"{load.buffer.name}[{self.index(load.index, load.indirect)}]"
        if load.mask is None:
            return text
        other = self.scalar(load.other) if load.other is not None else "0"
        return f"({text} if {self.scalar(load.mask)} else {other})"

    def apply(self, apply: loops.Apply) -> str:
        args = [self.scalar(a, top=apply.op not in INFIX) for a in apply.args]
        if apply.op in INFIX:
            return f"({args[0]} {INFIX[apply.op]} {args[1]})"
        name = SHORT[apply.dtype] if apply.op == "cast" else apply.op
        return f"{name}({', '.join(args)})"


_PRINT = {
    loops.Literal: lambda w, s: repr(s.value),
    loops.IndexValue: lambda w, s: f"i64({s.expr})",
    loops.SizeArgument: lambda w, s: f"a{s.position}",
    loops.Carry: lambda w, s: s.accumulator.name,
    loops.Prefix: lambda w, s: s.accumulator.name,
    loops.Load: _Writer.load,
    loops.Apply: _Writer.apply,
}


def _bare(text: str) -> str:
    """Without the parentheses that enclose the whole text."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def _count_uses(kernel: Kernel) -> dict[Scalar, int]:
    uses: dict[Scalar, int] = {}
    todo = [root for statement in kernel.statements() for root in loops.roots(statement)]
    while todo:
        scalar = todo.pop()
        uses[scalar] = uses.get(scalar, 0) + 1
        if uses[scalar] == 1:
            todo += scalar.operands()
            todo += (scalar.other,) if isinstance(scalar, loops.Load) and scalar.other else ()
    return uses
