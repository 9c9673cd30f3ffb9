"""Random numbers that are computed, element by element, from a seed: philox4x32-10.

In: a seed drawn from ATen's generator, the number of a stream, the position of an element.
Out: that element of the stream.  Invariant: the ops but for the one that draws are pure: equal
arguments give equal numbers, wherever, in whichever order and however often they are computed.

Philox: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011.  The counter is (position, stream), 64 bits each; the key is the seed; of the four words
the first counts.
"""

from __future__ import annotations

import torch

from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import op
from jitshape.ir.symint import Size

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)  # of the key, from round to round
WORD = 2**32 - 1
BITS = {torch.float64: 32, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
LARGEST = 2**63 - 1


def philox(seed: torch.Tensor, stream: int, position: torch.Tensor) -> torch.Tensor:
    """The words at these positions, as int64 in 0 .. 2**32 - 1."""
    key = [seed & WORD, (seed >> 32) & WORD]
    zero = position * 0
    words = [position & WORD, (position >> 32) & WORD]
    words += [zero + (stream & WORD), zero + (stream >> 32 & WORD)]
    for _ in range(ROUNDS):
        a, b = (words[place] * factor for place, factor in zip((0, 2), MULTIPLIERS))  # wraps
        high = [(product >> 32) & WORD for product in (a, b)]
        words = [high[1] ^ words[1] ^ key[0], b & WORD, high[0] ^ words[3] ^ key[1], a & WORD]
        key = [(k + more) & WORD for k, more in zip(key, INCREMENTS)]
    return words[0]


@op("jitshape.random_seed", family="random")
class RandomSeed:
    """One number for all streams of a graph, from ATen's generator of the device."""

    @staticmethod
    def type(env, device):
        return fresh((1,), torch.int64, device)

    @staticmethod
    def run(device):
        return torch.randint(-LARGEST, LARGEST, (1,), dtype=torch.int64, device=device)


@op("jitshape.random_uniform", family="index", recomputed=True)
class RandomUniform:
    """Numbers in [0, 1), multiples of 2**-bits, in f32 or, of 32 bits, in f64."""

    @staticmethod
    def type(env, seed, stream, size, bits):
        dtype = torch.float64 if bits > 24 else torch.float32
        return fresh(size, dtype, seed.type.device)

    @staticmethod
    def source(b, index, load, seed, stream, size, bits):
        position: Size = 0
        for at, extent in zip(index, size):
            position = position * extent + at
        word = b.philox(load(seed, (0,)), stream, b.index(position))
        dtype = torch.float64 if bits > 24 else torch.float32
        return b.mul(b.cast(b.shr(word, 32 - bits), dtype), 2.0**-bits)

    @staticmethod
    def run(seed, stream, size, bits):
        count = torch.Size(size).numel()
        words = philox(seed, stream, torch.arange(count, device=seed.device))
        dtype = torch.float64 if bits > 24 else torch.float32
        return ((words >> (32 - bits)).to(dtype) * 2.0**-bits).reshape(size)
