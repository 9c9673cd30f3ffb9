"""Layout rules against eager, and under symbolic sizes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir import strides as rules
from jitshape.ir.shape_env import ShapeEnv


@st.composite
def tensors(draw, max_rank=5):
    """Permuted, sliced, expanded tensors with sizes from 1."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=max_rank))
    steps = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=len(shape), max_size=len(shape)))
    order = draw(st.permutations(range(len(shape))))
    x = torch.empty([n * k for n, k in zip(shape, steps)])
    x = x[tuple(slice(None, None, k) for k in steps)].permute(order)
    expanded = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    target = [3 if e and n == 1 else n for e, n in zip(expanded, x.shape)]
    return x.expand(target)


def long_strides(shape, strides):
    return [s for n, s in zip(shape, strides) if n > 1]


@settings(max_examples=300, deadline=None)
@given(tensors())
def test_preserved_strides(x):
    found = rules.preserved_strides(ShapeEnv(), tuple(x.shape), x.stride())
    assert long_strides(x.shape, found) == long_strides(x.shape, torch.empty_like(x).stride())
    assert long_strides(x.shape, found) == long_strides(x.shape, x.clone().stride())


@settings(max_examples=300, deadline=None)
@given(tensors(), st.permutations(range(5)), st.integers(0, 3))
def test_elementwise_strides(x, order, dropped):
    y = torch.empty([x.shape[d] for d in order if d < x.ndim])
    back = sorted(range(x.ndim), key=[d for d in order if d < x.ndim].__getitem__)
    y = y.permute(back)[(0,) * min(dropped, x.ndim - 1)]
    expected = x + y
    operands = [(tuple(t.shape), t.stride()) for t in (x, y)]
    found = rules.elementwise_strides(ShapeEnv(), tuple(expected.shape), operands)
    assert long_strides(expected.shape, found) == long_strides(expected.shape, expected.stride())


@settings(max_examples=300, deadline=None)
@given(tensors(4), st.lists(st.integers(1, 6), min_size=0, max_size=4))
def test_view_strides(x, sizes):
    rest = x.numel()
    new = []
    for n in sizes:
        if rest % n == 0:
            new.append(n)
            rest //= n
    new.append(rest)
    found = rules.view_strides(ShapeEnv(), tuple(x.shape), x.stride(), tuple(new))
    try:
        expected = x.view(new)
    except RuntimeError:
        assert found is None
    else:
        assert long_strides(new, found) == long_strides(new, expected.stride())


def test_broadcast_of_symbols():
    env = ShapeEnv()
    s, t, u = env.size_symbol(4), env.size_symbol(4), env.size_symbol(1)
    assert rules.broadcast(env, (s, 8), (8,), (1, 8)) == (s, 8)
    assert not env.facts
    assert rules.broadcast(env, (s,), (t,)) == (s,)
    assert [str(f.condition) for f in env.facts] == ["s0 == s1"]
    assert rules.broadcast(env, (u,), (5,)) == (5,)
    assert str(env.facts[-1].condition) == "s2 == 1"


def test_transposed_symbols_need_no_fact():
    env = ShapeEnv()
    b, t = env.size_symbol(3), env.size_symbol(5)
    shape, strides = (b, 4, t, 8), (32 * t, 8, 32, 1)
    assert rules.elementwise_strides(env, shape, [(shape, strides)]) == strides
    assert rules.view_strides(env, shape, strides, (b, 4, t, 2, 4)) is not None
    assert rules.view_strides(env, shape, strides, (b * 4, t, 8)) is None
    back = ((b, t, 4, 8), (32 * t, 32, 8, 1))
    assert rules.is_contiguous(*back)
    assert rules.view_strides(env, *back, (b, t, 32)) is not None
    assert not env.facts


def test_channels_last():
    env = ShapeEnv()
    n, h = env.size_symbol(2), env.size_symbol(7)
    shape = (n, 3, h, h)
    strides = rules.dense(shape, rules.CHANNELS_LAST_ORDER[4])
    assert rules.suggested_format(shape, strides) is torch.channels_last
    assert rules.elementwise_strides(env, shape, [(shape, strides)] * 2) == strides
