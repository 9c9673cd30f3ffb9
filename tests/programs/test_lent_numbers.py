"""Numbers of the program that torch takes as C doubles or ints stay symbolic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import jitshape
from tests.programs.compare import assert_same

X, Y = torch.linspace(0.1, 1.2, 24).reshape(4, 6), torch.linspace(1.0, -1.0, 24).reshape(4, 6)
LABELS = torch.tensor([5, 1, 0, 1])
SIGN = torch.tensor([1.0, -1.0, 1.0, -1.0])
FLOATS: dict[str, Callable[[float], torch.Tensor]] = {
    "rms_norm": lambda p: F.rms_norm(X, (6,), Y[0], p),
    "layer_norm": lambda p: F.layer_norm(X, (6,), eps=p),
    "cosine_similarity": lambda p: F.cosine_similarity(X, Y, eps=p),
    "pairwise_distance": lambda p: F.pairwise_distance(X, Y, eps=p),
    "dropout": lambda p: F.dropout(X, p),
    "dropout that does nothing": lambda p: F.dropout(X, p, training=False) + 1,
    "bernoulli": lambda p: torch.bernoulli(X, p),
    "bernoulli_": lambda p: X.clone().bernoulli_(p),
    "normal_": lambda p: X.clone().normal_(p, std=p),
    "isclose": lambda p: torch.isclose(X, Y, rtol=p, atol=p),
    "nan_to_num": lambda p: torch.log(Y).nan_to_num(p, neginf=p),
    "margin_ranking_loss": lambda p: F.margin_ranking_loss(X[:, 0], Y[:, 0], SIGN, margin=p),
    "hinge_embedding_loss": lambda p: F.hinge_embedding_loss(X[:, 0], SIGN, margin=p),
    "cosine_embedding_loss": lambda p: F.cosine_embedding_loss(X, Y, SIGN, margin=p),
    "triplet_margin_loss": lambda p: F.triplet_margin_loss(X, Y, X * 2, margin=p),
    "cross_entropy": lambda p: F.cross_entropy(X, LABELS, label_smoothing=p),
    "cross_entropy, weights": lambda p: F.cross_entropy(X, LABELS, Y[0].exp(), label_smoothing=p),
    "cross_entropy, some ignored": lambda p: F.cross_entropy(
        X[:, :, None].expand(4, 6, 2),
        torch.stack([LABELS, LABELS.flip(0)], 1),
        Y[0].exp(),
        ignore_index=1,
        label_smoothing=p,
    ),
    "cross_entropy, summed": lambda p: F.cross_entropy(
        X, LABELS, reduction="sum", label_smoothing=p
    ),
    "cross_entropy, shares": lambda p: F.cross_entropy(X, Y.softmax(1), label_smoothing=p),
    "cross_entropy, one row": lambda p: F.cross_entropy(
        X[0], LABELS[2], reduction="none", label_smoothing=p
    ),
    "logit": lambda p: torch.logit(X / 1.5, p),
    "quantile": lambda p: X.quantile(p, dim=1),
    "nanquantile": lambda p: torch.nanquantile(X, p),
    "norm": lambda p: X.norm(p),
    "vector_norm": lambda p: torch.linalg.vector_norm(X, p + 2, dim=1),
    "normalize": lambda p: F.normalize(X, p + 2),
    "cdist": lambda p: torch.cdist(X, Y, p=p),
    "pdist": lambda p: F.pdist(X, p + 2),
    "pairwise_distance, order": lambda p: F.pairwise_distance(X, Y, p=p + 1),
    "triplet_margin_loss, order": lambda p: F.triplet_margin_loss(X, Y, X * 2, p=p + 2),
    "normal": lambda p: torch.normal(p, p, (3,)),
    "interpolate": lambda p: F.interpolate(X[None, None], scale_factor=p + 1),
    "interpolate, bilinear": lambda p: F.interpolate(
        X[None, None], scale_factor=p + 1, mode="bilinear"
    ),
    "poisson_nll_loss": lambda p: F.poisson_nll_loss(X, Y, log_input=False, eps=p),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    """One recompile, when the number changes first; the numbers between are served."""
    f = FLOATS[name]
    jitshape.reset()
    compiled = jitshape.compile(f)
    for p in (0.25, 0.5, 0.375, 0.3125):
        torch.manual_seed(3)
        expected = f(p)
        torch.manual_seed(3)
        assert_same(expected, compiled(p), f"{p}")
    stats = jitshape.stats()
    if "quantile" in name and torch.__version__ < "2.13":
        # torch's C++ compares the elements of q there, which no trace knows.
        assert stats["graph_breaks"] > 0, stats
        return
    assert stats["compiles"] == 2, jitshape.history()[-1].facts
    assert stats["graph_breaks"] == stats["fallbacks"] == 0


def assert_same_outcome(f, compiled, p: float) -> None:
    try:
        expected = f(p)
    except (ValueError, RuntimeError) as error:
        with pytest.raises(type(error)):
            compiled(p)
    else:
        assert_same(expected, compiled(p))


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, 1.5])
@pytest.mark.parametrize("name", ["dropout", "dropout that does nothing", "bernoulli_", "isclose"])
def test_ends_of_what_is_one_case(name: str, p: float) -> None:
    f, compiled = FLOATS[name], jitshape.compile(FLOATS[name], dynamic=True)
    compiled(0.25)
    assert_same_outcome(f, compiled, p)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3, float("inf"), -1.0, 2.5])
@pytest.mark.parametrize("name", ["norm", "cdist", "pairwise_distance, order"])
def test_orders_that_are_cases_of_their_own(name: str, p: float) -> None:
    f, compiled = FLOATS[name], jitshape.compile(FLOATS[name], dynamic=True)
    assert_same(f(0.75), compiled(0.75))
    assert_same_outcome(f, compiled, p)


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy, weights", "norm", "quantile"])
def test_gradients_through_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitshape.compile(FLOATS[name])
    for p in (0.25, 0.5, 0.375):
        grads = []
        for function in (FLOATS[name], compiled):
            x = torch.linspace(0.1, 1.2, 24).reshape(4, 6).requires_grad_()
            monkeypatch.setitem(globals(), "X", x)
            function(p).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_offsets_of_diagonals() -> None:
    def f(x: torch.Tensor, k: int) -> tuple:
        return x.diagonal(k), x.diagonal(k, 1, 0), x.tril(k)

    jitshape.reset()
    compiled = jitshape.compile(f)
    for k in (1, 2, 3, 5, -1, -2, -3, 0, 6, -4):
        assert_same(f(X, k), compiled(X, k), f"{k}")
    assert jitshape.stats()["compiles"] <= 6  # for either sign, and for what is empty
