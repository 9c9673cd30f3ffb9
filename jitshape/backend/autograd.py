"""A compiled graph as a part of autograd's graph.

In: the forward program, a function that compiles the backward program on demand, and the
`Contract` between both (from the joint split).  Out: a callable with the user's inputs and
outputs, whose results autograd treats as eager's.
Invariant: only what autograd must see goes through the `torch.autograd.Function`.  Aliases of
inputs and outputs and writes to inputs happen outside of it, as ordinary ops on real tensors, so
that views, versions and their errors are eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from jitshape import forks
from jitshape.errors import DoubleBackward
from jitshape.ir.evaluate import rebuild_alias, with_traits
from jitshape.ir.graph import Alias, Graph, Mutation, Reshaped, Value, tensor_type
from jitshape.ir.passes.partition import Split
from jitshape.ir.passes.under_autocast import Lowered, lowered_now
from jitshape.ir.strides import is_contiguous
from jitshape.ir.types import TensorType, numel
from jitshape.ir.versions import add_versions, reshape
from jitshape.observe.counters import count_in

Program = Callable[..., Sequence[Any]]
CompileBackward = Callable[[tuple[bool, ...], Lowered], Program]


@dataclass(frozen=True)
class AliasPlan:
    """Output `place` is a view of input or output `base`; its geometry is at `geometry` among the
    forward program's results.  `kind` is the cheapest view that gives it: "same" memory and
    geometry, "flat" (both contiguous), "permuted" by `dims`, or "strided"."""

    place: int
    base: int
    of_input: bool
    ndim: int
    geometry: int
    dtype: torch.dtype
    requires_grad: bool
    kind: str = "strided"
    dims: tuple[int, ...] = ()
    traits: tuple[str, ...] = ()

    def rebuild(self, base: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
        """The view of `base` that has this shape, strides and offset, with its traits."""
        return with_traits(lambda: self._seen(base, geometry), self.traits)

    def _seen(self, base: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
        if base.requires_grad and not self.requires_grad:
            base = base.detach()
            if self.kind == "same":
                return base
        if self.kind == "permuted":
            return base.permute(self.dims)
        n = self.ndim
        if self.kind == "flat":
            return base.view(geometry[:n])
        return rebuild_alias(base, geometry[:n], geometry[n : 2 * n], geometry[2 * n], self.dtype)


@dataclass(frozen=True)
class Contract:
    """What a call needs to know of the split graph."""

    inputs: int  # tensors; behind them come ints
    differentiable: tuple[int, ...]  # the inputs that require grad
    returned: int  # outputs the user gets
    kept: int  # outputs in all: then come saved tensors, sizes, alias geometry
    saved: int
    sizes: int
    tensors: tuple[int, ...]  # places of outputs that leave the Function, each value once
    same: tuple[tuple[int, int], ...]  # (place, an earlier place with the same value)
    passed: tuple[tuple[int, int], ...]  # (place, the input returned there)
    tangents: tuple[int, ...]  # the differentiated ones, as indices into `tensors`
    like_output: tuple[bool, ...]  # the tangent has its output's strides; else it is contiguous
    aliases: tuple[AliasPlan, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    reshaped: tuple[Reshaped, ...] = ()
    frees: tuple[int, ...] = ()  # of each tangent, as Graph.frees


def contract_of(graph: Graph, split: Split) -> Contract:
    """The contract of the joint `graph` and its `split`."""
    count = len(graph.inputs) - len(split.tangents)
    position: dict[Value, int] = {}
    same, passed = [], []
    for place, value in enumerate(split.forward.outputs[: split.kept]):
        if not isinstance(value, Value):
            continue
        if value.node is None and place not in split.tangents:
            passed.append((place, value.index))
        elif value in position:
            same.append((place, position[value]))
        else:
            position[value] = place
    tensors = tuple(position.values())
    tangent_inputs = graph.inputs[count:]
    pairs = [(split.forward.outputs[p], t) for p, t in zip(split.tangents, tangent_inputs)]
    given = [i for i, gradient in enumerate(split.backward.outputs) if gradient is not None]
    tracked = (i for i, value in enumerate(graph.inputs[:count]) if value.requires_grad)
    return Contract(
        inputs=count,
        differentiable=tuple(given or tracked),  # without gradients results still require grad
        returned=graph.returned or 0,
        kept=split.kept,
        saved=split.saved,
        sizes=split.sizes,
        tensors=tensors,
        same=tuple(same),
        passed=tuple(passed),
        tangents=tuple(tensors.index(position[value]) for value, _ in pairs),
        like_output=tuple(t.type.strides == value.type.strides for value, t in pairs),
        aliases=tuple(_alias_plans(split)),
        mutations=split.mutations,
        reshaped=split.reshaped,
        frees=graph.frees,
    )


def _alias_plans(split: Split) -> list[AliasPlan]:
    plans = []
    at = split.kept + split.saved + split.sizes
    for place, alias in split.aliases:
        of_input = isinstance(alias, Alias)
        base = alias.input if isinstance(alias, Alias) else alias.output
        source = split.forward.inputs[base] if of_input else split.forward.outputs[base]
        type_, ndim = alias.type, len(alias.type.shape)
        kind, dims = _kind_of_view(tensor_type(source), type_)
        row = (place, base, of_input, ndim, at, type_.dtype, alias.requires_grad)
        plans.append(AliasPlan(*row, kind, dims, alias.traits))
        at += 2 * ndim + 1
    return plans


def _kind_of_view(base: TensorType, view: TensorType) -> tuple[str, tuple[int, ...]]:
    """The kind of an AliasPlan, and the dimensions of a permutation."""
    if (base.dtype, base.offset) != (view.dtype, view.offset):
        return "strided", ()
    if (base.shape, base.strides) == (view.shape, view.strides):
        return "same", ()
    contiguous = (is_contiguous(t.shape, t.strides) for t in (base, view))
    if numel(base.shape) == numel(view.shape) and all(contiguous):
        return "flat", ()
    free = list(range(base.ndim))
    rows = list(zip(base.shape, base.strides))
    dims = []
    for row in zip(view.shape, view.strides):
        found = next((d for d in free if rows[d] == row), None)
        if found is None:
            return "strided", ()
        free.remove(found)
        dims.append(found)
    return ("strided", ()) if free else ("permuted", tuple(dims))


@dataclass
class _Runtime:
    """One compiled graph: its programs and contract."""

    forward: Program
    compile_backward: CompileBackward
    contract: Contract
    name: str
    watch: Callable[[tuple[bool, ...], Sequence[Any]], None] | None
    needs: Callable[[int, int], frozenset[int]]

    def __post_init__(self) -> None:
        self.backwards: dict[tuple[tuple[bool, ...], Lowered], Program] = {}
        self.needed: dict[int, frozenset[int]] = {}
        contract = self.contract
        places = range(len(contract.tensors))
        self.untracked = [i for i in places if i not in contract.tangents]
        self.plain = not (contract.same or contract.mutations or contract.passed)
        self.plain = self.plain and not (contract.aliases or contract.reshaped)
        self.lock = forks.lock()

    def backward(self, defined: tuple[bool, ...], lowered: Lowered) -> Program:
        """The backward program for these tangents and autocast regions, compiled at first use."""
        key = defined, lowered
        program = self.backwards.get(key)
        if program is None:
            with self.lock:
                program = self.backwards.get(key)
                if program is None:
                    program = self.backwards[key] = self.compile_backward(*key)
        return program

    def saved_for(self, tangents: Sequence[int]) -> set[int]:
        """Which saved tensors the backward programs of these tangents read."""
        found: set[int] = set()
        for place in tangents:
            if place not in self.needed:
                self.needed[place] = self.needs(place, len(self.contract.tangents))
            found |= self.needed[place]
        return found


class _Saved:
    """What a call saved, once some of its results had their backward and others may have it."""

    __slots__ = ("tensors", "versions")

    def __init__(self, tensors: Sequence[torch.Tensor], needed: set[int]) -> None:
        self.tensors = [
            t.detach() if place in needed else _without_memory(t) for place, t in enumerate(tensors)
        ]
        self.versions = [_version(t) for t in self.tensors]

    def unpack(self) -> list[torch.Tensor]:
        if any(_version(t) != old for t, old in zip(self.tensors, self.versions)):
            raise RuntimeError(
                "a tensor needed for gradient computation has been modified by an inplace operation"
            )
        return list(self.tensors)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes, which programs read off it."""
    row = {"dtype": tensor.dtype, "device": "meta"}
    return torch.empty_strided(tensor.shape, tensor.stride(), **row)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _saveable(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd keeps for `tensor`, which eager need not have saved itself."""
    if not tensor.is_inference():
        return tensor
    row = tensor.storage_offset(), tensor.shape, tensor.stride()
    seen = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return seen.set_(tensor.untyped_storage(), *row)


class _Call:
    """What one call hands through `Function.apply`, beside the tensors autograd sees."""

    __slots__ = ("inputs", "results")

    def __init__(self, inputs: tuple) -> None:
        self.inputs = inputs
        self.results: list[Any] = []


class CompiledGraph(torch.autograd.Function):
    """Forward takes the differentiable inputs for autograd's sake only: the call has them all."""

    @staticmethod
    def forward(ctx: Any, runtime: _Runtime, call: _Call, *_: torch.Tensor) -> Any:
        contract = runtime.contract
        results = call.results = list(runtime.forward(*call.inputs))
        end = contract.kept + contract.saved
        ctx.save_for_backward(*map(_saveable, results[contract.kept : end]))
        ctx.runtime, ctx.sizes = runtime, results[end : end + contract.sizes]
        ctx.freed, ctx.remaining = 0, None
        tensors = tuple([results[place] for place in contract.tensors])
        if runtime.untracked:
            ctx.mark_non_differentiable(*[tensors[i] for i in runtime.untracked])
        ctx.set_materialize_grads(False)
        ctx.strides = [
            tensors[i].stride() if like else None
            for i, like in zip(contract.tangents, contract.like_output)
        ]
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        runtime: _Runtime = ctx.runtime
        contract = runtime.contract
        if torch.is_grad_enabled():
            raise DoubleBackward(
                f"double backward through the compiled graph of {runtime.name}",
                because="create_graph=True asks for a gradient that can be differentiated again",
                avoid="call the function with set_stance('force_eager'), or without create_graph",
            )
        tangents = [gradients[i] for i in contract.tangents]
        defined = tuple([t is not None for t in tangents])
        nothing = (None, None)
        if not any(defined):
            return nothing + (None,) * len(contract.differentiable)
        lowered = lowered_now()
        with _out_of_sight(lowered):
            laid = [_laid_out(t, s) for t, s in zip(tangents, ctx.strides) if t is not None]
            given = [*_unpack(ctx, contract, defined), *laid, *ctx.sizes]
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                _free(ctx, runtime, defined, given[: contract.saved])
            if runtime.watch is not None and _looks_for_nan():
                runtime.watch(defined, given)
            del gradients, tangents, laid  # the program lets go of tensors as it uses them
            results = runtime.backward(defined, lowered)(given)
        wanted = ctx.needs_input_grad[2:]
        places = zip(contract.differentiable, wanted)
        return (*nothing, *[results[i] if needed else None for i, needed in places])


@contextmanager
def _under_autocast() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
        yield


def _out_of_sight(lowered: Lowered) -> AbstractContextManager[Any]:
    """No mode of the thread's may see how backward is done."""
    return _under_autocast() if lowered else torch._C.DisableTorchFunction()


def _unpack(ctx: Any, contract: Contract, defined: tuple[bool, ...]) -> Sequence[torch.Tensor]:
    """The saved tensors, unless a backward before this one has freed what eager's would need."""
    wanted = [free for free, has in zip(contract.frees, defined) if has]
    if any(free & ctx.freed for free in wanted):
        _ = ctx.saved_tensors  # raises in autograd's own words, where any were saved
        raise RuntimeError(
            "backward through the graph a second time: what it saved was freed by the first, "
            "which was not called with retain_graph=True"
        )
    return ctx.saved_tensors if ctx.remaining is None else ctx.remaining.unpack()


def _free(
    ctx: Any, runtime: _Runtime, defined: tuple[bool, ...], saved: Sequence[torch.Tensor]
) -> None:
    """Let go of what only this backward, or one that eager refuses from now on, needs."""
    ctx.freed |= sum(1 << place for place, has in enumerate(defined) if has)
    frees = runtime.contract.frees
    left = [place for place, free in enumerate(frees) if not free & ctx.freed]
    ctx.remaining = _Saved(saved, runtime.saved_for(left)) if left else None
    ctx.maybe_clear_saved_tensors()


def _laid_out(tangent: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """`tangent` with the strides that backward was compiled for."""
    if strides is None:
        return tangent.contiguous()
    found = tangent.stride()
    if found == strides:
        return tangent
    if all(a == b or n <= 1 for a, b, n in zip(found, strides, tangent.shape)):
        return tangent
    count_in("autograd", "tangents_copied")
    copy = torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device)
    return copy.copy_(tangent)


def make_autograd_callable(
    forward: Program,
    compile_backward: CompileBackward,
    contract: Contract,
    name: str = "a function",
    watch: Callable[[tuple[bool, ...], Sequence[Any]], None] | None = None,
    needs: Callable[[int, int], frozenset[int]] = lambda place, count: frozenset(),
) -> Callable[..., list[Any]]:
    """A callable `(*inputs, *symbols) -> list of the user's outputs`.

    `forward(*inputs, *symbols)` gives the forward graph's outputs; `compile_backward(defined,
    lowered)` gives, for the tangents that are defined and the autocast regions round `backward()`,
    `backward([*saved, *defined tangents, *sizes])`, which empties the list and returns a gradient
    or None for each input.  `watch(defined, that list)` is
    called before it where anomaly detection looks for nan.  `needs(place, count)` tells the saved
    tensors that the backward of the tangent at `place`, of `count`, reads."""
    runtime = _Runtime(forward, compile_backward, contract, name, watch, needs)

    def run(*inputs: Any) -> list[Any]:
        call = _Call(inputs)
        tracked = [inputs[i] for i in contract.differentiable]
        if torch.is_grad_enabled():
            tensors = CompiledGraph.apply(runtime, call, *tracked)
        else:  # the program enables it itself: some result requires grad
            with torch.enable_grad():
                tensors = CompiledGraph.apply(runtime, call, *tracked)
        results = call.results
        for place, tensor in zip(contract.tensors, tensors):
            results[place] = tensor
        if not runtime.plain:
            _finish(contract, inputs, results)
        return results[: contract.returned]

    return run


def _finish(contract: Contract, inputs: Sequence[Any], results: list[Any]) -> None:
    """Writes to inputs, then views of inputs and outputs, where autograd sees them."""
    for place, earlier in contract.same:
        results[place] = results[earlier]
    for mutation in contract.mutations:
        source = results[mutation.output]
        with torch.set_grad_enabled(source.requires_grad):
            inputs[mutation.input].copy_(source)
        add_versions(inputs[mutation.input], mutation.versions - 1)
    for place, position in contract.passed:
        results[place] = inputs[position]
    for plan in contract.aliases:
        base = inputs[plan.base] if plan.of_input else results[plan.base]
        geometry = results[plan.geometry : plan.geometry + 2 * plan.ndim + 1]
        results[plan.place] = plan.rebuild(base, geometry)
    for change in contract.reshaped:
        view = None if change.output is None else results[change.output]
        reshape(inputs[change.input], view, change.times)


class Consumed(torch.autograd.Function):
    """A result whose graph a backward inside of the compiled function has freed."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return result.data  # no view of it: it may be written in place

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "backward a second time: the compiled function ran it before, without "
            "retain_graph=True, and so freed what it needs"
        )


def with_consumed(run: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """`run` with the results at `places` as autograd leaves them after a backward."""
    if not places:
        return run
    anchor = torch.empty(0, requires_grad=True)

    def marked(*inputs: Any) -> list[Any]:
        results = list(run(*inputs))
        with torch.enable_grad():
            for place in places:
                results[place] = Consumed.apply(anchor, results[place])
        return results

    return marked


def _looks_for_nan() -> bool:
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
