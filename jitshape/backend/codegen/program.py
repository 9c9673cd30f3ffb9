"""The program: straight-line Python that binds sizes, allocates, launches, calls ATen, returns.

In: a graph, its kernel and extern calls in order, the memory plan.  Out: the source text and what
its global names stand for (backend/bindings.py).  Invariant: nothing is looked up, built or
decided at call time that could be decided here; every name is bound once before the first call.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from jitshape.backend.bindings import Binding
from jitshape.backend.blas import Product, product
from jitshape.backend.externs import gives_row, has_out
from jitshape.backend.kernels import KernelCall
from jitshape.backend.lower import FAULT, is_view_op, root
from jitshape.backend.memory import MemoryPlan
from jitshape.errors import InternalError
from jitshape.ir.facts import assumption
from jitshape.ir.graph import (
    Alias,
    Graph,
    Mutation,
    Node,
    OutputAlias,
    Value,
    new_symbols,
    tensor_type,
)
from jitshape.ir.layouts import Layouts
from jitshape.ir.notation import print_int
from jitshape.ir.ops.externs import is_checked
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size
from jitshape.ir.types import SHORT, TensorType

Call = KernelCall | Node
Told = tuple[Atom | None, ...]  # the symbol that each size of a result tells


class ProgramWriter:
    """Writes one program; `bindings`, what its global names stand for, grows with it."""

    def __init__(
        self,
        graph: Graph,
        algebra: Algebra,
        calls: Sequence[Call],
        plan: MemoryPlan,
        launchers: Sequence[int],
        told: Mapping[str, Told],
        layouts: Layouts | None = None,
    ) -> None:
        """`launchers`: the place of the launcher of each kernel call; `told`: by name of result."""
        self.told, self.layouts = told, layouts
        self.graph, self.algebra, self.calls, self.plan = graph, algebra, calls, plan
        self.launchers = iter(launchers)
        self.bindings: dict[str, Binding] = {}
        self._help("empty", "as_strided")
        self.lines: list[str] = []
        self._names: dict[Any, str] = {}
        self._taken: set[str] = set(self.bindings) | {"float", "math", "max", "min", "program"}
        self._taken |= {FAULT.name, "note", "faults", "new_fault", "check", "no_grad"}
        self._taken |= {"Refuted", "state", "random_state", "check_shape"}
        self._taken |= {
            "set_version",
            "add_versions",
            "rebuild_alias",
            "reshape",
            "with_strides",
            "layouts",
        }
        self._names[FAULT] = FAULT.name
        self._symbols: set[Atom] = set()
        self._hoisted: dict[int, str] = {}
        self._told: set[Atom] = set()  # symbols that a result tells
        self._sized = {number.symbol for number in graph.symbols} | set(self._input_symbols())
        self._asserts = list(graph.env.asserts) if graph.env is not None else []
        self._drew = False  # random numbers, so far
        self._restores = False  # whether a failed assert comes after that
        self._views: dict[tuple, str] = {}
        self._last_use: dict[Value, int] | None = None  # of inputs, the step
        self._constants: dict[Any, str] = {}

    def write(self) -> str:
        """The source of `def program(...)`."""
        given = [number.symbol for number in self.graph.symbols]
        passed = [*self.graph.inputs, *(atom for atom in given if atom is not None)]
        inputs = ", ".join(self.name(thing) for thing in passed)
        for step, call in enumerate(self.calls):
            if isinstance(call, KernelCall):
                self._launch(call)
            else:
                self._extern(call)
            self._free(step)
            self._free_inputs(step)
        if self._notes_faults():
            self.bindings["check"] = ("check",)
            self.lines.append(f"if note.value: check([{inputs}])")
            self.lines.append(f"faults.append(({FAULT.name}, note))")
        self._return()
        body = [*self._bindings(), *self._fault_lines(), *self._random_lines(), *self.lines]
        if self.graph.consumed:
            body = [f"[{inputs}] = given", "given.clear()", *body]
            inputs = "given"
        return "\n".join([f"def program({inputs}):", *(f"    {line}" for line in body), ""])

    def _notes_faults(self) -> bool:
        calls = (call for call in self.calls if isinstance(call, KernelCall))
        return any(FAULT in call.buffers for call in calls)

    def _fault_lines(self) -> list[str]:
        """A flag that is down, which this call alone holds."""
        if not self._notes_faults():
            return []
        self.bindings["faults"] = ("faults",)
        self._help("new_fault")
        return [f"{FAULT.name}, note = faults.pop() if faults else new_fault()"]

    def _random_lines(self) -> list[str]:
        if not self._restores:
            return []
        self._help("random_state")
        return ["state = random_state()"]

    # ---- names

    def name(self, thing: Value | Atom) -> str:
        """The variable of a value or symbol."""
        found = self._names.get(thing)
        if found is None:
            found = self._names[thing] = self._fresh(thing.name)
        return found

    def _fresh(self, wish: str) -> str:
        wish = re.sub(r"\W", "_", wish)
        if not wish.isidentifier() or keyword.iskeyword(wish):
            wish = f"v_{wish}"
        name, count = wish, 1
        while name in self._taken:
            name, count = f"{wish}_{count}", count + 1
        self._taken.add(name)
        return name

    def _bind(self, key: Any, wish: str, *binding: Any) -> str:
        if key not in self._constants:
            name = self._constants[key] = self._fresh(wish)
            self.bindings[name] = binding
        return self._constants[key]

    def _help(self, *names: str) -> None:
        self.bindings.update((name, ("helper", name)) for name in names)

    # ---- sizes

    def size(self, size: Size) -> str:
        """Text of a size; what is not a polynomial of symbols gets a variable first."""
        if type(size) is int:
            return print_int(size)
        parts: list[str] = []
        for monomial, factor in self.algebra.terms(size):
            factors = [self._atom(self.algebra.atoms[id]) for id in monomial]
            if abs(factor) != 1 or not factors:
                factors.insert(0, print_int(abs(factor)))
            sign = "-" if factor < 0 else "+"
            text = "*".join(factors)
            parts.append(f" {sign} {text}" if parts else text if factor > 0 else f"-{text}")
        return "".join(parts)

    def _atom(self, atom: Atom) -> str:
        if atom.args is None and atom.host is None:
            self._symbols.add(atom)
            return self.name(atom)
        if atom.id not in self._hoisted:
            text = self._atom_text(atom)
            name = self._fresh(f"z{len(self._hoisted)}")
            self.lines.append(f"{name} = {text}")
            self._hoisted[atom.id] = name
        return self._hoisted[atom.id]

    def _atom_text(self, atom: Atom) -> str:
        if atom.args is None:
            expr = self.algebra.atom_expr(atom.id)
            self._symbols.update(expr.symbols())
            self._help("math")
            return expr.print(self.name)
        a, b = (self.size(arg) for arg in atom.args)
        sign = {"floordiv": "//", "mod": "%"}.get(atom.kind)
        return f"({a}) {sign} ({b})" if sign else f"{atom.kind}({a}, {b})"

    def real(self, real: FloatExpr) -> str:
        """Text of a float computed from sizes and float arguments."""
        self._symbols.update(real.symbols())
        self._help("math")
        return real.print(self.name)

    def sizes(self, sizes: Iterable[Size]) -> str:
        return _tuple(self.size(s) for s in sizes)

    def _bindings(self) -> list[str]:
        """Lines that read the symbols in use from the inputs, each once."""
        given = {number.symbol for number in self.graph.symbols}
        missing, lines = self._symbols - given - self._told, []
        for value in self.graph.inputs:
            if not isinstance(value.type, TensorType):
                continue
            name = self.name(value)
            sides = ((value.type.shape, "shape"), (value.type.strides, "stride()"))
            for sizes, attribute in sides:
                targets = [self._target(size, missing) for size in sizes]
                if any(target != "_" for target in targets):
                    lines.append(
                        f"{', '.join(targets)}{',' * (len(targets) == 1)} = {name}.{attribute}"
                    )
            offset = self._target(value.type.offset, missing)
            if offset != "_":
                lines.append(f"{offset} = {name}.storage_offset()")
        if missing:
            listed = ", ".join(sorted(atom.name for atom in missing))
            cause = KeyError(f"no input's size, stride or offset is {listed}")
            raise InternalError("program", cause)
        return lines

    def _target(self, size: Size, missing: set[Atom]) -> str:
        return self._told_as(size.symbol if type(size) is not int else None, missing)

    def _told_as(self, symbol: Atom | None, missing: set[Atom]) -> str:
        if symbol is None or symbol not in missing:
            return "_"
        missing.discard(symbol)
        return self.name(symbol)

    # ---- steps

    def _launch(self, call: KernelCall) -> None:
        for value in call.outputs:
            self._allocate(value)
        launcher = next(self.launchers)
        name = self._fresh(call.kernel.name)
        self.bindings[name] = ("kernel", launcher)
        args = [self.name(value) for value in call.buffers]
        for atom in call.kernel.sizes:
            args.append(self._atom(atom))
        args += [self.argument(value) for value in call.scalars]
        self.lines.append(f"{name}({', '.join(args)})")

    def _allocate(self, value: Value) -> None:
        name, source = self.name(value), self.plan.reuse.get(value)
        type_ = self.plan.layout[value]
        if source is not None:
            self.lines.append(f"{name} = {self.name(source)}; del {self.name(source)}")
            return
        shape, strides = self.sizes(type_.shape), self.sizes(type_.strides)
        if type_.device.type == "cpu":
            wish = f"empty_{SHORT[type_.dtype]}"
            empty = self._bind(("empty", type_.dtype), wish, "empty", type_.dtype)
            self.lines.append(f"{name} = {empty}({shape}, {strides})")
            return
        dtype, device = self._constant(type_.dtype), self._constant(type_.device)
        self.lines.append(f"{name} = empty({shape}, {strides}, dtype={dtype}, device={device})")

    def _extern(self, node: Node) -> None:
        found = product(node, self.algebra)
        if found is not None:
            self._product(node, found)
            return
        name = self._bind(("op", node.op), node.op.split(".")[1], "op", node.op)
        args = [self.argument(arg) for arg in node.args]
        args += [f"{key}={self.argument(arg)}" for key, arg in node.kwargs.items()]
        if has_out(node):
            self._allocate(node.outs[0])
            args.append(f"out={self.name(node.outs[0])}")
            left = ""
        else:
            left = ", ".join(self.name(out) for out in node.outs)
            left += "," * (len(node.outs) == 1 and gives_row(node))
            left = f"{left} = " if left else ""
        where = f"  # {node.location}" if node.location else ""
        self.lines.append(f"{left}{name}({', '.join(args)}){where}")
        self._drew = self._drew or node.token is not None
        rows = (self.told.get(out.name, ()) for out in node.outs)
        told = {*new_symbols(node), *(atom for row in rows for atom in row if atom is not None)}
        told -= self._sized  # a size that equals another one is written as that
        if told:
            self._bind_results(node, set(told))
        if is_checked(node):
            self._check_shapes(node)
        if node.op not in OPS or OPS[node.op].attributes.get("layout_varies"):
            self._check_layout(node)
        if told:
            self._assert()

    def _check_shapes(self, node: Node) -> None:
        self._help("check_shape")
        for out in node.outs:
            if isinstance(out.type, TensorType):
                name, shape = self.name(out), self.sizes(out.type.shape)
                self.lines.append(f"check_shape({node.op!r}, {name}, {shape})")

    def _check_layout(self, node: Node) -> None:
        """Results get the strides that the graph has for them, where no rule is sure of them."""
        self._help("with_strides")
        for out in node.outs:
            if isinstance(out.type, TensorType) and out.type.ndim > 1:
                name, strides = self.name(out), self.sizes(out.type.strides)
                self.lines.append(f"{name} = with_strides({name}, {strides})")

    def _product(self, node: Node, p: Product) -> None:
        """A matrix product on memory: no operand is made a view."""
        layout = (p.a.transposed, p.b.transposed)
        letters = "".join("nt"[flag] for flag in layout)
        op = node.op.split(".")[1]
        binding = ("product", p.dtype, *layout, p.bias is not None)
        name = self._bind(binding, f"{op}_{letters}", *binding)
        self._allocate(node.outs[0])
        tensors = [node.outs[0], p.a.base, p.b.base]
        args = [self.name(value) for value in tensors]
        args += [self.tensor(p.bias)] if p.bias is not None else []
        numbers = (*p.sizes, p.a.leading, p.b.leading, p.a.shift, p.b.shift)
        args += [self.size(number) for number in numbers]
        where = f"  # {node.location}" if node.location else ""
        self.lines.append(f"{name}({', '.join(args)}){where}")

    def _bind_results(self, node: Node, told: set[Atom]) -> None:
        """Lines that read the symbols that a call's results tell."""
        self._told |= told
        for out in node.outs:
            if isinstance(out.type, TensorType):
                targets = [self._told_as(atom, told) for atom in self.told.get(out.name, ())]
                if any(target != "_" for target in targets):
                    comma = "," * (len(targets) == 1)
                    self.lines.append(f"{', '.join(targets)}{comma} = {self.name(out)}.shape")
            elif out.type.symbol is not None:
                self.lines.append(f"{self._target(out.type.symbol, told)} = {self.name(out)}")

    def _assert(self) -> None:
        """What the program relied on about numbers that are known from here on."""
        for fact in list(self._asserts):
            symbols = set(fact.condition.symbols())
            if symbols & self._told and symbols <= self._told | self._sized:
                self._asserts.remove(fact)
                what = assumption(fact)
                text = fact.condition.print(self._atom)
                self._help("Refuted")
                rest = ", state" if self._drew else ""
                self._restores = self._restores or self._drew
                message = f"a value does not fit what follows: {what}"
                self.lines.append(f"if not ({text}): raise Refuted({message!r}, {what!r}{rest})")

    def _input_symbols(self) -> Iterator[Atom]:
        for value in self.graph.inputs:
            if isinstance(value.type, TensorType):
                for size in (*value.type.shape, *value.type.strides, value.type.offset):
                    if type(size) is IntExpr and size.symbol is not None:
                        yield size.symbol

    def _free(self, step: int) -> None:
        dead = [self.name(value) for value in self.plan.frees[step]]
        if dead:
            self.lines.append(f"del {', '.join(dead)}")

    def _free_inputs(self, step: int) -> None:
        """Let go of the inputs that are no longer needed, where nobody else holds them."""
        if not self.graph.consumed or self._notes_faults():
            return
        if self._last_use is None:
            kept = {root(o) for o in self.graph.outputs if isinstance(o, Value)}
            uses = {
                root(value): i for i, call in enumerate(self.calls) for value in _values_of(call)
            }
            self._last_use = {
                value: uses.get(value, 0) for value in self.graph.inputs if value not in kept
            }
        dead = [self.name(value) for value, last in self._last_use.items() if last == step]
        if dead:
            self.lines.append(f"del {', '.join(dead)}")

    # ---- arguments

    def argument(self, arg: Any) -> str:
        """Text of an argument of an extern call."""
        if isinstance(arg, Value):
            return self.tensor(arg) if isinstance(arg.type, TensorType) else self.name(arg)
        if type(arg) is IntExpr:
            return self.size(arg)
        if type(arg) is FloatExpr:
            return self.real(arg)
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(self.argument(item) for item in arg)}]"
        if arg is None or isinstance(arg, (bool, int, str)):
            return repr(arg)
        if isinstance(arg, float) and math.isfinite(arg):
            return repr(arg)
        return self._constant(arg)

    def _constant(self, value: Any) -> str:
        wish = SHORT.get(value, "c") if isinstance(value, torch.dtype) else "c"
        return self._bind(value, wish, "constant", value)

    def tensor(self, value: Value) -> str:
        """Text of a tensor: a variable, or a view of one, made once."""
        source = root(value)
        name = self.name(source)
        have = self.plan.layout.get(source, tensor_type(source))
        type_ = tensor_type(value)
        shift = type_.offset - tensor_type(source).offset
        if type_.shape == have.shape and type_.strides == have.strides and shift == 0:
            return name
        key = (source, type_.shape, type_.strides, shift)
        if source in self.graph.inputs and key in self._views:
            return self._views[key]
        text = self._view_text(name, source, have, type_, shift)
        if source in self.graph.inputs:
            self._views[key] = self._fresh(f"{name}_view")
            self.lines.append(f"{self._views[key]} = {text}")
            return self._views[key]
        return text

    def _view_text(
        self, name: str, source: Value, have: TensorType, type_: TensorType, shift: Size
    ) -> str:
        if shift == 0 and type_.ndim > 1 and _swapped(have) == (type_.shape, type_.strides):
            return f"{name}.t()" if type_.ndim == 2 else f"{name}.mT"
        parts = [name, self.sizes(type_.shape), self.sizes(type_.strides)]
        if shift != 0:
            parts.append(f"{name}.storage_offset() + {self.size(shift)}")
        return f"as_strided({', '.join(parts)})"

    # ---- outputs

    def _return(self) -> None:
        texts: list[str] = []
        for output in self.graph.outputs:
            texts.append("" if isinstance(output, (Alias, OutputAlias)) else self._output(output))
        for mutation in self.graph.mutations:
            texts[mutation.output] = self._written_back(mutation, texts[mutation.output])
        for place in self.graph.owned:
            if is_view_op(self.graph.outputs[place]):
                texts[place] += ".detach()"
        self._lay_out(texts)
        if self.graph.tracking:
            self._hide_from_autograd()
        for place, output in enumerate(self.graph.outputs):
            if isinstance(output, Alias):
                texts[place] = self._rebuilt(self.name(self.graph.inputs[output.input]), output)
            elif isinstance(output, OutputAlias):
                base = self._variable(texts, output.output)
                texts[place] = self._rebuilt(base, output)
        for change in self.graph.reshaped:
            self._help("reshape")
            target = self.name(self.graph.inputs[change.input])
            view = "None"
            if change.output is not None:
                view = self._variable(texts, change.output)
            self.lines.append(f"reshape({target}, {view}, {change.times})")
        for place, number in self.graph.versions:
            self._help("set_version")
            self.lines.append(f"set_version({self._variable(texts, place)}, {number})")
        self.lines.append(f"return {_tuple(texts)}")

    def _lay_out(self, texts: list[str]) -> None:
        """Results get eager's strides where a size is 0 or 1."""
        outputs, inputs, env = self.graph.outputs, self.graph.inputs, self.graph.env
        places = [] if self.layouts is None else self.layouts.places
        made = [isinstance(outputs[place], Value) for place in places]
        if self.layouts is None or not any(made):
            return
        small = [self.size(env.simplify(size)) for size in self.layouts.small()]
        given = _tuple(f"{self.name(inputs[v.index])}.stride()" for v in self.layouts.given)
        numbers = _tuple(self.size(env.simplify(symbol)) for symbol in self.layouts.symbols)
        rows = zip(places, made)
        results = [self._variable(texts, place) if new else "None" for place, new in rows]
        targets = ", ".join(name if new else "_" for name, new in zip(results, made))
        self.bindings["layouts"] = ("layouts",)
        tests = [] if any(text.isdigit() for text in small) else [f"{text} < 2" for text in small]
        head = f"if {' or '.join(dict.fromkeys(tests))}: " if tests else ""
        given = f"[{', '.join(results)}], {given}, {numbers}"
        self.lines.append(f"{head}[{targets}] = layouts({given})")

    def _hide_from_autograd(self) -> None:
        """ATen is called, and inputs are written, as the program did it: without autograd."""
        if self.graph.mutations or any(isinstance(call, Node) for call in self.calls):
            self._help("no_grad")
            self.lines = ["with no_grad():", *(f"    {line}" for line in self.lines)]

    def _output(self, output: Any) -> str:
        return self.argument(output)

    def _written_back(self, mutation: Mutation, text: str) -> str:
        target = self.name(self.graph.inputs[mutation.input])
        self.lines.append(f"{target}.copy_({text})")
        if mutation.versions != 1:
            self._help("add_versions")
            self.lines.append(f"add_versions({target}, {mutation.versions - 1})")
        return text

    def _variable(self, texts: list[str], place: int) -> str:
        """The text of an output, given a variable so that it is evaluated once."""
        if not texts[place].isidentifier():
            name = self._fresh(f"out{place}")
            self.lines.append(f"{name} = {texts[place]}")
            texts[place] = name
        return texts[place]

    def _rebuilt(self, base: str, alias: Alias | OutputAlias) -> str:
        type_ = alias.type
        sources = self.graph.inputs if isinstance(alias, Alias) else self.graph.outputs
        place = alias.input if isinstance(alias, Alias) else alias.output
        if not alias.requires_grad and isinstance(alias, Alias) and sources[place].requires_grad:
            base = f"{base}.detach()"
        parts = [self.sizes(type_.shape), self.sizes(type_.strides), self.size(type_.offset)]
        if sources[place].type.dtype == type_.dtype and not alias.traits:
            return f"as_strided({base}, {', '.join(parts)})"
        self._help("rebuild_alias")
        parts += [self._constant(type_.dtype), repr(alias.traits)]
        return f"rebuild_alias({base}, {', '.join(parts)})"


def _values_of(call: Call) -> Iterable[Value]:
    return call.buffers if isinstance(call, KernelCall) else call.inputs()


def _swapped(type_: TensorType) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Shape and strides with the last two dimensions exchanged."""
    shape, strides = type_.shape, type_.strides
    return (*shape[:-2], *shape[-2:][::-1]), (*strides[:-2], *strides[-2:][::-1])


def _tuple(parts: Iterable[str]) -> str:
    listed = list(parts)
    return f"({', '.join(listed)}{',' * (len(listed) == 1)})"
