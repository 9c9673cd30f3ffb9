"""Attention written with its scores: what is compiled holds none, at sizes that change."""

import math

import torch
from torch import nn

import jitshape

SIZES = ((1, 260), (2, 300), (3, 17), (1, 1), (2, 270))


class SelfAttention(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        rows = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = rows.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def test_sizes_change_and_rows_without_any_score_are_eagers():
    jitshape.reset()
    torch.manual_seed(0)
    model = SelfAttention().eval()
    compiled = jitshape.compile(model)
    with torch.no_grad():
        for batch, length in SIZES:
            x, mask = torch.randn(batch, length, 32), torch.rand(batch, length) > 0.2
            mask[:, 0] = True
            mask[-1] &= batch < 3
            torch.testing.assert_close(compiled(x, mask), model(x, mask), equal_nan=True)
    stats = jitshape.stats()
    assert stats["compiles"] == 2 and stats["extern_ops"]["jitshape.attention.default"] == 2
    assert stats["fallbacks"] == 0


def test_training_has_eagers_gradients():
    torch.manual_seed(0)
    model = SelfAttention()
    compiled = jitshape.compile(model)
    for batch, length in SIZES[:3]:
        x, mask = torch.randn(batch, length, 32), torch.ones(batch, length, dtype=torch.bool)
        found = torch.autograd.grad(compiled(x, mask).square().sum(), list(model.parameters()))
        expected = torch.autograd.grad(model(x, mask).square().sum(), list(model.parameters()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
