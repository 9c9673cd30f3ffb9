"""Scheduling: which values are computed in memory, and which of them share a kernel.

In: a functional, decomposed graph.  Out: a `Schedule`: groups of units and extern calls in an
order that respects their needs, and the log of fusion decisions.  Invariant: every value that an
output, an extern call or another group reads is a graph input, an extern result, or a unit.

A unit is a value that is not simply inlined into its readers: reductions, whatever must be in
memory, and whatever is used several times and dear to compute.  Cheap values are computed again
in every kernel that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from jitshape.backend.builder import WEIGHT, Builder
from jitshape.backend.contractions import Contractions
from jitshape.backend.fusion import (
    Axes,
    Fusion,
    Group,
    Piece,
    Read,
    Space,
    Unit,
    blocker,
    counts_positions,
    extents_of,
    unify,
)
from jitshape.backend.indexing import Index, divides, reshape_index, same_count
from jitshape.backend.loops import Apply, Buffer, IndexValue, Load, Scalar
from jitshape.backend.lower import (
    Lowering,
    can_inline,
    family,
    has_index_map,
    is_turned,
    is_view,
    root,
)
from jitshape.backend.ordering import Traffic, in_order
from jitshape.ir.graph import Graph, Node, Value, map_leaves, new_symbols
from jitshape.ir.ops.registry import OPS
from jitshape.ir.raising import may_fail
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size
from jitshape.ir.types import TensorType, numel

CHEAP = 4  # additions: less is computed again rather than stored
DEAR = 10
LONGEST_INLINE = 200  # additions inlined into one value
DEEPEST_INLINE = 24  # ops inlined one into another


@dataclass(frozen=True)
class Reduced:
    """A reduction: over which dimensions of its operand."""

    dims: tuple[int, ...]
    space: Space


@dataclass
class Schedule:
    """Groups in execution order.  `stored`: the units' values that must be in memory."""

    graph: Graph
    algebra: Algebra
    groups: list[Group]
    stored: set[Value]
    log: list[str] = field(default_factory=list)
    sums: Collection[Node] = ()  # that are matrix products


def schedule(graph: Graph, contractions: Contractions | None = None) -> Schedule:
    """Decide units, group them, order the groups.  `contractions` has made `graph`, if any has."""
    return _Scheduler(graph, contractions or Contractions(graph)).run()


def reduced(node: Node) -> Reduced:
    """The space of a reduction node.  A reduction over nothing, or one that looks for a position
    in all dimensions, gets a single reduced dimension."""
    operand = node.args[0].type
    dims = tuple(OPS[node.op].arguments(*node.args, **node.kwargs)[0])
    if "arg" in node.op.split(".")[1] and len(dims) > 1:
        return Reduced(dims, Space((numel(operand.shape),), (True,)))
    if not dims:
        return Reduced(dims, Space((*operand.shape, 1), (False,) * operand.ndim + (True,)))
    return Reduced(dims, Space(operand.shape, tuple(d in dims for d in range(operand.ndim))))


class _Scheduler:
    def __init__(self, graph: Graph, contractions: Contractions) -> None:
        self.graph, self.contractions = graph, contractions
        self.algebra: Algebra = graph.env.algebra
        self.axes = Axes(self.algebra)
        self.fusion = Fusion(self.algebra, self.axes, contractions.sums)
        self.users: dict[Value, list[Node]] = defaultdict(list)
        self.required: set[Value] = set()  # in memory, whoever reads them
        self.turned: set[Value] = set()  # read in another order of dimensions
        self.units: dict[Value, Unit] = {}
        self.memory: set[Value] = set(graph.inputs)  # computed by nobody here
        self.cost: dict[Value, tuple[int, int, int]] = {}  # of inlined: weight, reads, depth
        self.log: list[str] = list(contractions.log)

    def run(self) -> Schedule:
        nodes = [node for node in self.graph.nodes if family(node) != "view"]
        self._collect_users(nodes)
        group_of: dict[Value, Group] = {}
        groups: list[Group] = []
        ordered: set[Group] = set()  # the last random or effectful call
        tellers: dict[Atom, Group] = {}  # who tells a size that depends on data
        for position, node in enumerate(nodes):
            group = self._group(node, position)
            if group is None:
                continue
            group.needs = {group_of[r] for r in self._roots(group) if r in group_of}
            group.needs |= self._tellers(node, tellers)
            groups.append(group)
            if node.token is not None or (group.extern is not None and not node.outs):
                group.needs |= ordered
                ordered = {group}
            for value in node.outs:
                group_of[value] = group
            if group.extern is None:
                self._fuse(group, groups, group_of)
            else:
                tellers.update(dict.fromkeys(new_symbols(node), group))
        self._fuse_siblings(groups, group_of)
        stored = self._stored(groups, group_of)
        sums = self.contractions.sums
        order = in_order(groups, self._traffic(groups, stored))
        return Schedule(self.graph, self.algebra, order, stored, self.log, sums)

    def _traffic(self, groups: list[Group], stored: set[Value]) -> Traffic:
        kept = {root(v) for v in self.graph.outputs if isinstance(v, Value)}
        kept |= set() if self.graph.consumed else set(self.graph.inputs)
        reads, makes = {}, {}
        for group in groups:
            outs = group.extern.outs if group.extern else [u.value for u in group.units]
            makes[group] = [v for v in outs if group.extern is not None or v in stored]
            found = self._roots(group) - kept - set(outs)
            reads[group] = sorted(found, key=lambda value: value.name)
        return Traffic(reads, makes)

    def _tellers(self, node: Node, tellers: dict[Atom, Group]) -> set[Group]:
        """The calls that tell sizes which `node`, or what is inlined into it, depends on."""
        if not tellers:
            return set()
        found: dict[Atom, None] = {}
        todo, seen = [node], {node}
        while todo:
            one = todo.pop()
            for symbol in symbols_used(one):
                found.setdefault(symbol)
            makers = {v.node for v in one.inputs() if v.node is not None and v not in self.units}
            fresh = [n for n in makers - seen if self._computed(n) or family(n) == "view"]
            seen.update(fresh)
            todo += fresh
        return {tellers[symbol] for symbol in found if symbol in tellers}

    # ---- units

    def _collect_users(self, nodes: list[Node]) -> None:
        for node in nodes:
            extern = not self._computed(node)
            self.turned.update(root(v) for v in node.inputs() if is_turned(v))
            for value in dict.fromkeys(root(v) for v in node.inputs()):
                self.users[value].append(node)
                if extern:
                    self.required.add(value)
            if extern:
                self.memory.update(node.outs)
        for node in self.graph.nodes:
            if family(node) == "view" and not has_index_map(node.outs[0]):
                self.required.add(root(node.outs[0]))
            if reads_in_part(node):
                self.required.update(v for v in map(root, node.inputs()) if is_looked_up(v))
        for output in self.graph.outputs:
            if isinstance(output, Value):
                self.required.add(root(output))
        for node in nodes:  # it is made for what it may raise
            if may_fail(node) and not any(self.users[value] for value in node.outs):
                self.required.update(node.outs)

    @staticmethod
    def _computed(node: Node) -> bool:
        if len(node.outs) != 1:
            return False
        return family(node) in ("reduction", "scan") or can_inline(node.outs[0])

    def _group(self, node: Node, position: int) -> Group | None:
        """A new group of the node's value, or None where it is inlined or unused."""
        if not self._computed(node):
            return Group([], Space((), ()), position, position, node)
        value = node.outs[0]
        if value not in self.required and not self.users[value]:
            return None
        unit = self._unit(value, position)
        if self._inline(unit):
            return None
        self.units[value] = unit
        return Group([unit], unit.space, position, position)

    def _unit(self, value: Value, position: int) -> Unit:
        """The value as a unit: lowered at its own axes, to see what it reads and costs."""
        node = value.node
        assert node is not None
        space = Space(value.type.shape, (False,) * value.type.ndim)
        if family(node) == "reduction":
            space = reduced(node).space
        if value in self.required and family(node) == "index" and OPS[node.op].has("pieces"):
            return self._put_together(value, position, space)
        unit = self._lowered(value, position, space)
        if unit.alone or node in self.contractions.sums:
            return unit
        finer = self._finer(unit)
        return unit if finer == space else self._lowered(value, position, finer)

    def _put_together(self, value: Value, position: int, space: Space) -> Unit:
        """A value in memory whose parts are computed one by one."""
        node = value.node
        assert node is not None
        pieces: list[Piece] = []
        weight = 0
        for part, place in OPS[node.op].pieces(*node.args, **node.kwargs):
            builder = Builder(self.algebra)
            recorder = _Recorder(self, builder)
            own = Space(part.type.shape, (False,) * part.type.ndim)
            axes = self.axes.of("p", own.dims)
            Lowering(builder, recorder.leaf, extents_of(axes, own.dims)).element(part, axes)
            cost, positions = recorder.weigh()
            weight += cost
            pieces.append(Piece(part, place, own, axes, tuple(recorder.reads), positions))
        reads = tuple(read for piece in pieces for read in piece.reads)
        axes = self.axes.of("p", space.dims)
        return Unit(value, position, space, axes, reads, (), weight, tuple(pieces))

    def _lowered(self, value: Value, position: int, space: Space) -> Unit:
        node = value.node
        assert node is not None
        builder = Builder(self.algebra)
        recorder = _Recorder(self, builder)
        axes = self.axes.of("p", space.dims)
        low = Lowering(builder, recorder.leaf, extents_of(axes, space.dims))
        if space.reduces:
            element = low.element(node.args[0], operand_index(self.algebra, node, space, axes))
            OPS[node.op].prepare(builder, element, *node.args[1:], **node.kwargs)
        else:
            shown = node.args[0] if family(node) == "scan" else value
            low.element(shown, reshape_index(self.algebra, axes, space.dims, value.type.shape))
        weight, positions = recorder.weigh()
        reads = tuple(recorder.reads)
        return Unit(value, position, space, axes, reads, positions, weight)

    def _finer(self, unit: Unit) -> Space:
        """The unit's space with dimensions split where that saves divisions in what it reads:
        [b*s, 8] reading t[b, s, 8] through a view  -->  [b, s, 8]"""
        space = unit.space
        if counts_positions(unit):
            return space
        for read in unit.reads:
            at, value = read.index, read.value
            if read.root_index is not None:
                at, value = read.root_index, read.root
            shape = value.type.shape
            if any(divides(self.algebra, i) for i in at) and same_count(shape, space.dims):
                split = unify(self.algebra, space, Space(shape, (False,) * len(shape)))
                space = split if isinstance(split, Space) else space
        return space

    def _inline(self, unit: Unit) -> bool:
        """Whether the readers compute the value themselves."""
        value, node = unit.value, unit.node
        inputs = [self.cost[v] for v in (root(v) for v in node.inputs()) if v in self.cost]
        depth = 1 + max((c[2] for c in inputs), default=0)
        self.cost.pop(value, None)
        if unit.reduction or unit.alone:
            return False
        if node in self.contractions.terms:
            return True
        if value in self.required and family(node) != "factory":
            return False
        if value in self.required or unit.weight > LONGEST_INLINE or depth > DEEPEST_INLINE:
            return False
        if value in self.turned and any(read.root in self.units for read in unit.reads):
            return False  # it can be made where those are, its reader cannot
        users = self.users[value]
        if self._is_poor_factor(unit, users):
            return False
        reads = len({(read.value, read.index) for read in unit.reads})
        cheap = unit.weight <= CHEAP and reads <= 2
        if not cheap and (len(users) > 1 or (unit.weight >= DEAR and self._expanded(unit))):
            return False
        self.cost[value] = (unit.weight, reads, depth)
        return True

    def _is_poor_factor(self, unit: Unit, users: list[Node]) -> bool:
        """Whether a matrix product had better read the value in memory: each element is computed
        once for each tile of the result."""
        factors = self.contractions.factors
        if not factors.intersection(users):
            return False
        moved = any(divides(self.algebra, i) for read in unit.reads for i in read.index)
        if len(unit.reads) <= 1 and unit.weight <= CHEAP and not moved:
            return False
        self.log.append(f"{unit.value}: made in memory, since a matrix product reads it")
        return True

    def _expanded(self, unit: Unit) -> bool:
        """Whether a reader has more elements than the value."""
        shape = unit.value.type.shape
        return any(not same_count(shape, _domain(user)) for user in self.users[unit.value])

    # ---- groups

    def _roots(self, group: Group) -> set[Value]:
        if group.extern is not None:
            return {root(v) for v in group.extern.inputs()}
        return {read.root for unit in group.units for read in unit.reads}

    def _fuse(self, group: Group, groups: list[Group], group_of: dict[Value, Group]) -> None:
        """Merge a new group into those that make what it reads, the latest first."""
        makers = {group_of[r] for r in self._roots(group) if r in group_of}
        for maker in sorted(makers, key=lambda g: -g.last):
            if maker is group:
                continue
            reason = blocker(self.fusion, maker, group)
            self._note(maker, group, reason)
            if reason is None:
                group = self._merge(maker, group, groups, group_of)

    def _fuse_siblings(self, groups: list[Group], group_of: dict[Value, Group]) -> None:
        """Merge groups over equal spaces that read the same tensor."""
        readers: dict[tuple[Value, Space], list[Group]] = defaultdict(list)
        for group in groups:
            if group.extern is None:
                for read_root in dict.fromkeys(self._roots_in_order(group)):
                    readers[read_root, group.space].append(group)
        alive = set(groups)
        for together in readers.values():
            a: Group | None = None
            for b in dict.fromkeys(together):
                if b not in alive:
                    continue
                if a is None:
                    a = b
                    continue
                reason = blocker(self.fusion, a, b) or _path(a, b)
                self._note(a, b, reason)
                if reason is None:
                    self._merge(a, b, groups, group_of)
                    alive.discard(b)
                else:
                    a = b

    def _roots_in_order(self, group: Group) -> list[Value]:
        return [read.root for unit in group.units for read in unit.reads]

    def _merge(
        self, a: Group, b: Group, groups: list[Group], group_of: dict[Value, Group]
    ) -> Group:
        """`b` becomes part of `a`."""
        space = unify(self.algebra, a.space, b.space)
        assert isinstance(space, Space)
        a.space = space
        a.units = sorted((*a.units, *b.units), key=lambda unit: unit.position)
        a.first, a.last = min(a.first, b.first), max(a.last, b.last)
        a.needs = (a.needs | b.needs) - {a, b}
        for unit in b.units:
            group_of[unit.value] = a
        groups.remove(b)
        for group in groups:
            if b in group.needs:
                group.needs = group.needs - {b} | {a}
        return a

    def _note(self, a: Group, b: Group, reason: str | None) -> None:
        names = f"{a} and {b}"
        self.log.append(f"{names}: {'fused' if reason is None else reason}")

    def _stored(self, groups: list[Group], group_of: dict[Value, Group]) -> set[Value]:
        """Units that something outside their group reads."""
        stored = {value for value in self.units if value in self.required}
        for group in groups:
            for value in self._roots(group):
                if group_of.get(value) is not group and value in self.units:
                    stored.add(value)
        return stored


class _Recorder:
    """The leaf of a lowering that only looks: what is read, where, at which cost."""

    def __init__(self, scheduler: _Scheduler, builder: Builder) -> None:
        self.memory, self.units = scheduler.memory, scheduler.units
        self.builder = builder
        self.reads: list[Read] = []
        self._view: tuple[Value, Index] | None = None  # the outermost view being expanded
        self._buffers: dict[Value, Buffer] = {}

    def leaf(self, value: Value, index: Index, mask: Scalar | None) -> Scalar | None:
        source = root(value)
        if source in self.memory:
            return self._read(Read(value, index, source, None), index)
        if source not in self.units:
            return None
        if not has_index_map(value):
            return self._read(Read(value, index, source, None), index)
        if is_view(value):
            self._view = self._view or (value, index)
            return None
        seen, seen_index = self._view or (value, index)
        self._view = None
        return self._read(Read(seen, seen_index, source, index), index)

    def _read(self, read: Read, index: Index) -> Scalar:
        self.reads.append(read)
        dtype = read.root.type.dtype
        buffer = self._buffers.setdefault(read.root, Buffer(read.root.name, dtype))
        linear: Size = 0
        for place, i in enumerate(index):
            linear = linear + i * (place * 1009 + 1)  # distinct reads stay distinct scalars
        return self.builder.load(buffer, linear)

    def weigh(self) -> tuple[int, tuple[Size, ...]]:
        """Additions, and the index expressions used as numbers."""
        scalars = self.builder.scalars()
        weight = sum(WEIGHT.get(s.op, 1) for s in scalars if isinstance(s, Apply))
        indirect = sum(bool(s.indirect) for s in scalars if isinstance(s, Load))
        positions = tuple(s.expr for s in scalars if isinstance(s, IndexValue))
        return weight + 2 * indirect, positions


def reads_in_part(node: Node) -> bool:
    """Whether elements of an operand may be left out, so that nobody computes them."""
    part = node.op.split(".")[1] in ("slice", "select", "diagonal", "as_strided", "unfold")
    return part or (family(node) == "index" and may_fail(node))


def is_looked_up(value: Value) -> bool:
    """Whether all of it must be computed, for what is raised where an index is out of range."""
    node = value.node
    return node is not None and family(node) == "index" and may_fail(node)


def operand_index(algebra: Algebra, node: Node, space: Space, index: Index) -> Index:
    """The element of a reduction's operand at `index` of the reduction's own space."""
    shape, dims = node.args[0].type.shape, space.dims
    if not reduced(node).dims:  # the extra dimension of one element
        index, dims = index[:-1], dims[:-1]
    return reshape_index(algebra, index, dims, shape)


def symbols_used(node: Node) -> dict[Atom, None]:
    """The symbols in the arguments and types of a node."""
    found: dict[Atom, None] = {}

    def note(leaf: object) -> None:
        if isinstance(leaf, (IntExpr, FloatExpr)):
            found.update(dict.fromkeys(leaf.symbols()))

    types = [v.type for v in (*node.outs, *node.inputs()) if isinstance(v.type, TensorType)]
    map_leaves(note, (node.args, node.kwargs, [(t.shape, t.strides, t.offset) for t in types]))
    return found


def _domain(node: Node) -> tuple[Size, ...]:
    """The elements over which a node reads its operands."""
    if family(node) == "reduction":
        return node.args[0].type.shape
    out = node.outs[0].type
    return out.shape if isinstance(out, TensorType) else ()


def _path(a: Group, b: Group) -> str | None:
    """Why `b`, placed with `a`, would need itself: `a` needs something that needs `b`."""
    todo, seen = list(a.needs), set(a.needs)
    while todo:
        group = todo.pop()
        if group is b:
            return f"{a} needs {b}"
        fresh = group.needs - seen
        seen |= fresh
        todo += fresh
    return None
