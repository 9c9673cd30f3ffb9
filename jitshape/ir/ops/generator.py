"""The state of the CPU's default generator, read and set by the program.

These are nodes of the graph that keep their place among those that draw (`node.token`): what is
drawn behind `manual_seed` follows from it, and `get_rng_state` shows what was drawn before.
"""

from __future__ import annotations

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.ops.families import fresh, require
from jitshape.ir.ops.registry import op

CPU = torch.device("cpu")
BYTES = torch.default_generator.get_state().numel()


@op("jitshape.get_rng_state", family="random")
class GetState:
    """A copy of the state: bytes."""

    @staticmethod
    def type(env):
        return fresh((BYTES,), torch.uint8, CPU)

    run = staticmethod(torch.default_generator.get_state)


@op("jitshape.set_rng_state", family="random")
class SetState:
    @staticmethod
    def check(env, state):
        type_ = state.type
        if type_.dtype is not torch.uint8 or type_.ndim != 1 or type_.device != CPU:
            raise TypeError("the state of a generator is a ByteTensor on the CPU")
        require(env, compare("eq", type_.shape[0], BYTES), "RNG state is wrong size")
        require(env, compare("eq", type_.strides[0], 1), "RNG state must be contiguous")

    @staticmethod
    def type(env, state):
        return []

    @staticmethod
    def run(state):
        torch.default_generator.set_state(state)


@op("jitshape.manual_seed", family="random")
class ManualSeed:
    """Seeds the generators of all devices."""

    @staticmethod
    def type(env, seed):
        return []

    @staticmethod
    def run(seed):
        torch.manual_seed(seed)
