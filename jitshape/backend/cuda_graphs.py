"""Programs that are replayed as CUDA graphs: `mode="reduce-overhead"`.

In: a program's function and its graph.  Out: `Recorded`, called as the function.  The first call
at some sizes runs as it is (kernels are compiled, tiles chosen), the second is recorded, all later
ones replay the recording: one launch in place of one a kernel.
Invariant: results are those of the function.  Inputs that lie where they lay when the recording
was made (parameters, mostly) are read in place, others are copied to memory of the recording;
results are copies of its own; writes to inputs reach them, with their version counters; random
numbers go on from the generator's state, as torch's graphs do.  What cannot be recorded has a
reason, by `refusal`, and runs as without the mode.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from jitshape.backend.lower import root
from jitshape.ir.graph import Alias, Graph, OutputAlias, Value, new_symbols
from jitshape.ir.ops.registry import OPS
from jitshape.ir.types import TensorType
from jitshape.ir.versions import add_versions, set_version

MOST_RECORDINGS = 8  # of one program; other sizes run as they are
Run = Callable[..., Sequence[Any]]


class Recorder(Protocol):
    """What records and replays."""

    def can_record(self) -> bool:
        """Whether a call may be recorded now."""
        ...

    def stream(self) -> Hashable:
        """Where calls are queued."""
        ...

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """(replay, the results of `run`, which hold what each replay gives)."""
        ...


class GpuRecorder:
    """By torch.cuda.graph; recordings share the memory of what is not a result."""

    def __init__(self) -> None:
        self.pool: Any = None

    def can_record(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()

    def stream(self) -> Hashable:
        return torch.cuda.current_stream()

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            results = run()
        return graph.replay, results


RECORDER: Recorder = GpuRecorder()
KIND = "cuda"  # of the devices that it records


def recorded(run: Run, graph: Graph, tell: Callable[[str], None]) -> Run:
    """`run`, replayed where it can be; `tell` is told of each call, or once why not."""
    reason = refusal(graph, KIND)
    if reason is not None:
        tell(reason)
        return run
    return Recorded(run, graph, RECORDER, tell)


def refusal(graph: Graph, kind: str = KIND) -> str | None:
    """Why a program of `graph` is not recorded: it must run on one device of this kind without
    waiting for it, and give memory of its own."""
    types = [v.type for v in graph.inputs] + [o.type for n in graph.nodes for o in n.outs]
    devices = dict.fromkeys(t.device for t in types if isinstance(t, TensorType))
    if not devices:
        return "it has no tensors"
    if len(devices) > 1 or next(iter(devices)).type != kind:
        return f"it is not on one {kind} device: {', '.join(map(str, devices))}"
    for node in graph.nodes:
        if new_symbols(node):
            return f"{node.title} tells a number that depends on data"
        if node.op not in OPS or (node.token is not None and not node.outs):
            return f"whether {node.op} waits for the device is not known"
    if any(isinstance(o, (Alias, OutputAlias)) for o in graph.outputs) or graph.reshaped:
        return "a result is a view of an input or of another result"
    inputs = set(graph.inputs)
    if any(isinstance(o, Value) and o not in inputs and root(o) in inputs for o in graph.outputs):
        return "a result is a view of an input"
    storages = [value.storage for value in graph.inputs if value.storage is not None]
    if graph.mutations and len(set(storages)) < len(storages):
        return "it writes to inputs that share memory"
    return None


@dataclass
class _Recording:
    """`given`: the tensors that the recording reads, by place; those in `fixed` are the caller's
    own memory, at `addresses`."""

    given: list[Any]
    fixed: frozenset[int]
    addresses: dict[int, int]
    replay: Callable[[], None]
    results: Sequence[Any]


@dataclass
class _Sizes:
    """What is known of calls at one set of sizes."""

    addresses: dict[int, int]
    copied: set[int] = field(default_factory=set)  # inputs that move from call to call
    recording: _Recording | None = None


class Recorded:
    """`run`, replayed where that can be done.  `tell(what)` is told of each call."""

    def __init__(
        self,
        run: Run,
        graph: Graph,
        recorder: Recorder,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.run, self.recorder, self.tell = run, recorder, tell
        self.consumed = graph.consumed
        self.mutations = [(m.input, m.versions) for m in graph.mutations]
        self.versions = list(graph.versions)
        places = {value: place for place, value in enumerate(graph.inputs)}
        self.passed = {
            place: places[output]
            for place, output in enumerate(graph.outputs)
            if isinstance(output, Value) and output in places
        }
        self.sizes: dict[Hashable, _Sizes] = {}
        self.broken = ""  # why recording failed
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        given = list(inputs[0]) if self.consumed else list(inputs)
        if self.broken or not self.recorder.can_record():
            return self._plain(inputs, "not recorded")
        key = (self.recorder.stream(), *map(_key, given))
        with self.lock:
            known = self.sizes.get(key)
            if known is None:
                fits = len(self.sizes) < MOST_RECORDINGS
                if fits:
                    self.sizes[key] = _Sizes(_addresses(given))
                del given  # a program lets go of what it no longer needs
                return self._plain(inputs, "first" if fits else "too many sizes")
            with torch.no_grad():
                recording = self._recording(known, given)
                if recording is None:
                    return self._plain(inputs, "not recorded")
                if self.consumed:
                    inputs[0].clear()
                return self._replayed(recording, given)

    def _plain(self, inputs: Sequence[Any], what: str) -> Sequence[Any]:
        self.tell(what)
        return self.run(*inputs)

    # ---- recording

    def _recording(self, known: _Sizes, given: Sequence[Any]) -> _Recording | None:
        """The recording that serves these inputs, made where there is none."""
        addresses, found = _addresses(given), known.recording
        before = known.addresses if found is None else found.addresses
        moved = {place for place, at in addresses.items() if at != before[place]}
        if found is not None and not moved & found.fixed:
            return found
        known.copied |= moved
        known.recording = None  # its memory is free for the next one
        try:
            known.recording = self._record(given, addresses, known.copied)
        except RuntimeError as error:
            self.broken = str(error).splitlines()[0]
            warnings.warn(f"jitshape: no CUDA graph is used: {self.broken}", stacklevel=4)
        return known.recording

    def _record(
        self, given: Sequence[Any], addresses: dict[int, int], copied: set[int]
    ) -> _Recording:
        fixed = frozenset(addresses.keys() - copied)
        with torch.inference_mode(False):
            used = [
                x if not isinstance(x, torch.Tensor) else x.data if i in fixed else _room_for(x)
                for i, x in enumerate(given)
            ]

        def run() -> Sequence[Any]:
            results = self.run(list(used)) if self.consumed else self.run(*used)
            return [None if place in self.passed else r for place, r in enumerate(results)]

        replay, results = self.recorder.record(run)
        self.tell("recorded")
        held = [None if i in fixed else x for i, x in enumerate(used)]
        return _Recording(held, fixed, addresses, replay, results)

    # ---- replay

    def _replayed(self, recording: _Recording, given: Sequence[Any]) -> Sequence[Any]:
        for held, x in zip(recording.given, given):
            if isinstance(held, torch.Tensor):
                _copy(held, x)
        recording.replay()
        self.tell("replayed")
        for place, versions in self.mutations:
            held = recording.given[place]
            if held is not None:
                given[place].copy_(held)
            add_versions(given[place], versions - (held is not None))
        copies: dict[int, Any] = {}
        results = [
            given[self.passed[place]] if place in self.passed else _copied(result, copies)
            for place, result in enumerate(recording.results)
        ]
        for place, number in self.versions:
            set_version(results[place], number)
        return tuple(results)


def _key(x: Any) -> Hashable:
    """What of an input a recording is for."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.device, tuple(x.shape), x.stride()
    return type(x), x


def _addresses(given: Sequence[Any]) -> dict[int, int]:
    return {i: x.data_ptr() for i, x in enumerate(given) if isinstance(x, torch.Tensor)}


def _once(x: torch.Tensor) -> torch.Tensor:
    """`x` without what is expanded in it: [n, m] with strides (1, 0)  -->  [n, 1]"""
    for d, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[d] > 1:
            x = x.narrow(d, 0, 1)
    return x


def _room_for(x: torch.Tensor) -> torch.Tensor:
    """Memory for tensors like `x`, strides included.  Raises RuntimeError where elements share
    memory in another way than by expansion."""
    once, reach = _once(x), 0
    for stride, size in sorted(zip(once.stride(), once.shape)):
        if size > 1:
            if stride <= reach:
                raise RuntimeError("a tensor overlaps itself")
            reach += stride * (size - 1)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _copy(held: torch.Tensor, x: torch.Tensor) -> None:
    """`held` shows what `x` does; of elements that share memory, one is copied."""
    _once(held).copy_(_once(x))


def _copied(result: Any, copies: dict[int, Any]) -> Any:
    """A result that later replays leave alone; equal ones stay one tensor."""
    if not isinstance(result, torch.Tensor):
        return result
    if id(result) not in copies:
        made = _room_for(result)
        _copy(made, result)
        copies[id(result)] = made
    return copies[id(result)]
