"""Compiled graphs in the store: what a second process finds, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitshape
from jitshape import programs
from jitshape.cache import records
from jitshape.cache.store import Store
from jitshape.ir.records.plain import Unreadable
from tests.cache.process import run
from tests.programs.compare import assert_same

STEP = """
import torch, jitshape
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
compiled = jitshape.compile(model, dynamic=True)
told = []
for rows in SIZES:
    x = torch.linspace(0, 1, rows * 6).reshape(rows, 6)
    for f in (compiled, model):
        model.zero_grad()
        f(x).square().sum().backward()
        told.append([f(x).tolist(), [p.grad.tolist() for p in model.parameters()]])
"""


def hits(stats: dict, level: str) -> tuple[int, int]:
    row = stats["cache"].get(level, {"hit": 0, "miss": 0})
    return row["hit"], row["miss"]


def same(told: list) -> None:
    for compiled, eager in zip(told[::2], told[1::2], strict=True):
        for got, want in zip(compiled[1], eager[1], strict=True):
            torch.testing.assert_close(torch.tensor(got), torch.tensor(want))
        torch.testing.assert_close(torch.tensor(compiled[0]), torch.tensor(eager[0]))


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    told, stats = run(tmp_path, STEP.replace("SIZES", "(5, 9)"))
    same(told)
    assert (stats["compiles"], stats["backward_compiles"]) == (1, 1)
    told, stats = run(tmp_path, STEP.replace("SIZES", "(14, 5)"))  # other sizes than the first's
    same(told)
    assert (stats["compiles"], stats["backward_compiles"], stats["graph_hits"]) == (0, 0, 1)
    assert hits(stats, "program") == hits(stats, "backward") == (1, 0)
    assert not {"optimize", "partition", "generate"} & set(stats["seconds"])
    assert stats["kernels"] > 0 and stats["graphs"] == 2


def test_other_constants_and_another_default_dtype_miss(tmp_path: Path) -> None:
    program = """
        import torch, jitshape
        torch.set_default_dtype(torch.DTYPE)
        f = lambda x: (x.to(torch.float32) * BY).exp() + torch.ones(3).sum()
        got, want = jitshape.compile(f)(torch.arange(3)), f(torch.arange(3))
        told = got.dtype == want.dtype and torch.allclose(got, want)
    """
    for dtype, by, found in (
        *(("float32", "2", 0), ("float32", "2.5", 0), ("float64", "2", 0)),
        *(("float64", "2", 1), ("float32", "2.5", 1)),
    ):
        text = program.replace("DTYPE", dtype).replace("BY", by)
        told, stats = run(tmp_path, text)
        assert told and hits(stats, "program") == (found, 1 - found)


# ---- in one process: programs of every kind, written and read


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(tmp_path / "store", "ab" * 32)
    monkeypatch.setattr(records, "open_store", lambda: made)
    return made


def again() -> None:
    """As a new process finds it."""
    programs.forget_graphs()
    jitshape.reset()


def both(f: object, *args: object) -> dict:
    """Compiled twice, the second time from the store; the stats of that."""
    for _ in range(2):
        again()
        torch.manual_seed(0)
        expected = f(*args)
        torch.manual_seed(0)
        assert_same(expected, jitshape.compile(f)(*args))
    return jitshape.stats()


def test_programs_with_every_kind_of_name(store: Store) -> None:
    table = torch.rand(7, 3)

    def products_and_externs(x: torch.Tensor) -> tuple:
        return (x @ x.t()).sort()[0], torch.fft.fft(x), x.double() @ x.double().t()

    def gathers(x: torch.Tensor) -> torch.Tensor:
        return table[(x[0] * 6).long()] * float("inf")

    def writes_and_views(x: torch.Tensor) -> tuple:
        y = x.clone()
        y[0].add_(1)
        return y, y.t(), y[1:], x[1:], x.t().conj()

    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x, 0.5, True) + torch.rand_like(x)

    for f in (products_and_externs, gathers, writes_and_views, draws):
        stats = both(f, torch.rand(4, 5))
        assert (stats["compiles"], hits(stats, "program")) == (0, (1, 0)), f.__name__


def test_an_index_out_of_range_is_eagers_error(store: Store) -> None:
    weight = torch.rand(5, 2)

    def f(i: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(i, weight) + 1

    for _ in range(2):
        again()
        compiled = jitshape.compile(f)
        assert_same(f(torch.tensor([4])), compiled(torch.tensor([4])))
        with pytest.raises(IndexError, match="index out of range"):
            compiled(torch.tensor([5]))
    assert hits(jitshape.stats(), "program") == (1, 0)


def test_a_backward_for_other_tangents_is_made_from_the_record(store: Store) -> None:
    def f(x: torch.Tensor) -> tuple:
        return x.exp(), x.sin()

    for place in (0, 1, 0):
        again()
        x = torch.rand(4, requires_grad=True)
        jitshape.compile(f)(x)[place].sum().backward()
        assert_same((x.exp(), x.cos())[place].detach(), x.grad)
        stats = jitshape.stats()
    assert stats["backward_compiles"] == 0 and hits(stats, "backward") == (1, 0)


def test_texts_are_read_when_asked_for(store: Store) -> None:
    texts = []
    for _ in range(2):
        again()
        compiled = jitshape.compile(lambda x: x.exp() + 1)
        compiled(torch.rand(4))
        entry = _programs()[0]
        assert hits(jitshape.stats(), "texts") == (0, 0)
        texts.append([(k.name, k.origin, k.text, k.source) for k in entry.kernels])
    assert texts[0] == texts[1] and "exp" in texts[0][0][2] and "define" in texts[0][0][3]
    assert hits(jitshape.stats(), "texts") == (1, 0)


def _programs() -> list:
    return [made.program for made in programs._graphs._graphs.values()]


def test_what_does_not_fit_is_compiled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise Unreadable("no op aten.mm.default")

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin()

    x = torch.rand(3, 3)
    both(f, x)
    again()
    monkeypatch.setattr(records, "read_program", missing)
    assert_same(f(x), jitshape.compile(f)(x))
    stats = jitshape.stats()
    assert stats["compiles"] == 1
    assert stats["details"]["cache_misses"] == {"program: no op aten.mm.default": 1}
    for path in store.root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])
    again()
    assert_same(f(x), jitshape.compile(f)(x))
    stats = jitshape.stats()
    assert stats["compiles"] == 1 and stats["details"]["cache_misses"] == {"program: damaged": 1}


def test_a_back_end_of_the_users_sees_every_graph(store: Store) -> None:
    seen = []

    def backend(graph: object, inputs: list) -> object:
        seen.append(graph)
        return lambda x: [x + 1]

    for _ in range(2):
        again()
        jitshape.compile(lambda x: x + 1, backend=backend)(torch.rand(3))
    assert len(seen) == 2
