"""Random numbers are eager's, bit for bit and in program order."""

import pytest
import torch

import jitshape


def drawn(function, x):
    """What `function` gives under one seed, and the numbers drawn after it."""
    torch.manual_seed(7)
    results = function(x)
    return *(results if isinstance(results, tuple) else (results,)), torch.rand(3)


PROGRAMS = {
    "rand": lambda x: (torch.rand_like(x), torch.rand(x.shape[0], 2), torch.randn_like(x)),
    "randn": lambda x: (torch.randn(x.shape), torch.randint(0, 9, (x.shape[1],))),
    "order": lambda x: (torch.rand(3), torch.randperm(x.shape[0]), torch.rand(3)),
    "bernoulli": lambda x: (torch.bernoulli(x.sigmoid()), x.clone().bernoulli_(0.3)),
    "refill": lambda x: (torch.empty_like(x).uniform_(-1, 1), torch.empty_like(x).normal_(1, 2)),
    "multinomial": lambda x: torch.multinomial(x.softmax(1), 2),
    "unused": lambda x: (torch.rand(3), x + 1)[1],
    "rrelu": lambda x: (torch.rrelu(x, training=True), torch.rand(2)),
    "rrelu in place": lambda x: (torch.rrelu_(x.clone(), training=True), torch.rand(2)),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.4) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_eagers(name):
    jitshape.reset()
    compiled = jitshape.compile(PROGRAMS[name], dynamic=True, fullgraph=True)
    for shape in ((4, 8), (7, 5), (3, 40)):
        x = torch.randn(shape)
        for want, got in zip(drawn(PROGRAMS[name], x), drawn(compiled, x), strict=True):
            assert torch.equal(got, want)
    assert jitshape.stats()["compiles"] == 1


def test_dropout_in_training():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Dropout(0.5)
    )
    jitshape.reset()
    compiled = jitshape.compile(model, dynamic=True, fullgraph=True)
    for rows in (4, 7, 20):
        x, found = torch.randn(rows, 8), []
        for call in (model, compiled):
            result, after = drawn(call, x)
            result.sum().backward()
            found.append([result, after, *(p.grad for p in model.parameters())])
            model.zero_grad()
        assert torch.equal(found[0][0] == 0, found[1][0] == 0)
        torch.testing.assert_close(found[1], found[0])
    assert jitshape.stats()["compiles"] == 1
