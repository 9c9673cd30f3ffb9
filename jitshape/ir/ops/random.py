"""Random ops: in program order, told by `node.token`; they draw from ATen's generator."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.ops.factories import _like, _made
from jitshape.ir.ops.families import elementwise, preserved
from jitshape.ir.ops.registry import op


def random(*names: str) -> Any:
    return op(*names, family="random")


def _default_generator(generator: Any) -> None:
    if generator is not None:
        raise NotImplementedError("a generator object of the user")


@random("aten.native_dropout.default")
class NativeDropout:
    def type(env, x, p, train):
        return [preserved(env, x), preserved(env, x, torch.bool)]


class _NewRandom:
    def type(env, size, dtype=None, layout=None, device=None, pin_memory=None):
        return _made(size, dtype, device)


@random("aten.rand.default")
class Rand(_NewRandom):
    pass


@random("aten.randn.default")
class Randn(_NewRandom):
    pass


@random("aten.randint.default")
class Randint:
    def type(env, high, size, dtype=torch.int64, layout=None, device=None, pin_memory=None):
        return _made(size, dtype, device, torch.int64)


@random("aten.randint.low")
class RandintLow:
    def type(env, low, high, size, dtype=torch.int64, layout=None, device=None, pin_memory=None):
        return _made(size, dtype, device, torch.int64)


@random("aten.randperm.default")
class Randperm:
    def type(env, n, dtype=torch.int64, layout=None, device=None, pin_memory=None):
        return _made((n,), dtype, device, torch.int64)


class _RandomLike:
    def type(env, x, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return _like(env, x, dtype, device, memory_format)


@random("aten.rand_like.default")
class RandLike(_RandomLike):
    pass


@random("aten.randn_like.default")
class RandnLike(_RandomLike):
    pass


@random("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor")
class Bernoulli:
    def type(env, x, p=None, generator=None):
        _default_generator(generator)
        return preserved(env, x)


class _Refill:
    """New content of the shape and layout of `x`, whose elements are not read."""

    def type(env, x, *args, generator=None, **kwargs):
        _default_generator(generator)
        return preserved(env, x)


@random("aten.normal_functional.default", "aten.uniform.default", "aten.exponential.default")
class Refill(_Refill):
    pass


@random("aten.multinomial.default")
class Multinomial:
    def type(env, x, num_samples, replacement=False, generator=None):
        _default_generator(generator)
        shape = (*x.type.shape[:-1], num_samples)
        row = elementwise(env, [x], torch.int64)
        return _made(shape, torch.int64, row.device)
