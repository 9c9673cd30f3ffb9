"""Modules: training, buffers, tied weights, state, copies."""

from __future__ import annotations

import copy
import gc
import pickle

import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same, check


def train(model: nn.Module, run, batches) -> list:
    """Losses, then all state, of a few steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [losses, dict(model.state_dict())]


def assert_trains_alike(model: nn.Module, batches, compiles: int = 2) -> None:
    jitshape.reset()
    mine = copy.deepcopy(model)
    torch.manual_seed(3)
    expected = train(model, model, batches)
    torch.manual_seed(3)
    got = train(mine, jitshape.compile(mine), batches)
    assert_same(expected, got)
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0 and stats["graph_breaks"] == 0, stats["details"]
    assert stats["compiles"] <= compiles, [str(r) for r in jitshape.history()]


def batches(*sizes: int, features: int = 6) -> list:
    return [(torch.randn(n, features), torch.randn(n, 4)) for n in sizes]


def test_mlp() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    assert_trains_alike(model, batches(3, 5, 8, 1, 2))


def test_batch_norm_and_its_buffers() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    assert_trains_alike(model, batches(3, 5, 8, 4))


def test_batch_norm_with_momentum_none_and_eval() -> None:
    model = nn.BatchNorm1d(4, momentum=None)
    compiled = jitshape.compile(model)
    other = copy.deepcopy(model)
    for n in (3, 5, 6):
        x = torch.randn(n, 4)
        assert_same(other(x), compiled(x))
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    model.eval(), other.eval()
    assert_same(other(torch.ones(2, 4)), compiled(torch.ones(2, 4)))


def test_dropout_draws_eagers_numbers() -> None:
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.3), nn.Linear(32, 4), nn.Dropout(0.1))
    assert_trains_alike(model, batches(3, 5, 8, 4))


def test_convolutions() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2)
            self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.b(self.a(x).relu())).relu()
            return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))

    data = [(torch.randn(n, 1, 9, 9), torch.randn(n, 4)) for n in (2, 3, 5)]
    assert_trains_alike(Net(), data)


def test_embedding_attention_and_tied_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(self.embed(tokens)))

    shapes = ((2, 5), (2, 7), (3, 4))
    data = [(torch.randint(0, 11, s), torch.randn(*s, 11)) for s in shapes]
    assert_trains_alike(Model(), data, compiles=3)


def test_counter_and_lists_in_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counter, self.seen, self.last = 0, [], None
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.counter += 1
            self.seen.append(x.shape[0])
            self.last = self.fc(x)
            return self.last * self.counter

    model = Model()
    jitshape.reset()
    compiled = jitshape.compile(model)
    for n in range(1, 8):
        x = torch.randn(2, 3)
        got = compiled(x)
        assert_same(model.fc(x) * n, got)
        assert model.counter == n and model.last is not None
    assert model.seen == [2] * 7


def test_state_dict_and_attributes_are_shared() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    compiled = jitshape.compile(model)
    assert isinstance(compiled, nn.Module) and isinstance(compiled, nn.Sequential)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert compiled[0] is model[0] and len(compiled) == 2
    compiled.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()})
    assert (model[0].weight == 1).all()
    compiled.extra = 3
    assert model.extra == 3


def test_deepcopy_and_pickle() -> None:
    model = nn.Linear(3, 3)
    compiled = jitshape.compile(model)
    x = torch.randn(2, 3)
    expected = compiled(x)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert_same(expected, other(x))
        with torch.no_grad():
            other.weight.zero_()
        assert not torch.equal(other(x), expected)
    assert_same(expected, compiled(x))


def test_many_instances_of_one_class_share_an_entry() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    forward = jitshape.compile(Norm.forward)
    jitshape.reset()
    for _ in range(20):
        norm, x = Norm(), torch.randn(3, 8)
        assert_same(norm(x), forward(norm, x))
    assert jitshape.stats()["compiles"] == 1


class MadeOnce(nn.Module):
    """Its class has a `__new__` of its own, and behind nn.Module a built-in base."""

    made = 0

    def __new__(cls):
        cls.made += 1
        return super().__new__(cls)

    def forward(self, x):
        return x + len(self.__dict__)


class Table(nn.Module, dict):
    def forward(self, x):
        return x * 2


def test_wrapping_runs_nothing_of_the_users() -> None:
    module = MadeOnce()
    x = torch.ones(3)
    assert torch.equal(jitshape.compile(module)(x), module(x)) and MadeOnce.made == 1
    assert jitshape.compile(Table())(x).tolist() == [2.0] * 3
    traced = torch.fx.symbolic_trace(nn.Linear(3, 2))  # a class for each instance
    assert torch.equal(jitshape.compile(traced)(x), traced(x))


def test_wrapper_classes_go_with_their_wrappers() -> None:
    class Local(nn.Module):
        def forward(self, x):
            return x

    first, second = jitshape.compile(Local()), jitshape.compile(Local())
    assert type(first) is type(second) and Local.__subclasses__() == [type(first)]
    del first, second
    jitshape.reset()
    gc.collect()
    assert Local.__subclasses__() == []


def test_methods_and_callable_objects() -> None:
    class Thing:
        def __init__(self) -> None:
            self.scale = 2.0

        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

        @staticmethod
        def static(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @classmethod
        def cls(cls, x: torch.Tensor) -> torch.Tensor:
            return x - 1

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.method(x) + 1

    thing, x = Thing(), torch.randn(3)
    for fn in (thing.method, thing.static, thing.cls, Thing.cls, thing):
        assert_same(fn(x), jitshape.compile(fn)(x))


def test_parameter_lists_and_dicts() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])
            self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()})
            self.stack = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = x * weight
            for name, layer in self.layers.items():
                x = layer(x) if name == "a" else layer(x) + 1
            for index, layer in enumerate(self.stack):
                x = layer(x) * (index + 1)
            return x

    model = Model()
    check(
        model,
        (torch.randn(2, 4),),
        (torch.randn(3, 4),),
        parameters=lambda: list(model.parameters()),
    )


def test_checkpointed_blocks() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.sin(layer(y)) * y, x * 2, use_reentrant=False) + 1

    compiled = jitshape.compile(f)
    for n in (3, 5, 8):
        x, y = (torch.ones(n, 4, requires_grad=True) for _ in range(2))
        assert_same(f(x), compiled(y))
        f(x).sum().backward()
        compiled(y).sum().backward()
        assert_same(x.grad, y.grad)
