"""A small GPT and a BERT-like encoder, called with twelve sizes each.

Prints what was compiled, the one recompile that made sizes symbolic and its reason, the kernels'
names, errors against eager, and speed against eager.  A later run finds all of that on disk and
compiles nothing; with JITSHAPE_CACHE=0 JITSHAPE_PROFILE=0 it is as the first.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import jitshape

BATCHES = (2, 4, 3, 4, 1, 8, 5, 2, 7, 6, 3, 1)
LENGTHS = (32, 48, 40, 64, 17, 33, 96, 128, 24, 80, 100, 64)
SIZES = list(zip(BATCHES, LENGTHS))
VOCABULARY = 512


class Block(nn.Module):
    """A transformer layer; `causal` makes it a decoder's."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """GPT-style (causal, next-token scores) or BERT-like (padding mask, hidden states)."""

    def __init__(self, causal: bool, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.causal = causal

    def forward(self, ids: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        mask = None if padding is None else padding[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return x @ self.token.weight.t() if self.causal else x


def inputs(causal: bool, b: int, s: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(1, VOCABULARY, (b, s))
    if causal:
        return (ids,)
    return ids, (torch.arange(s)[None] < torch.randint(s // 2, s + 1, (b, 1))).long()


def milliseconds(fn, args: tuple, repeat: int = 15) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn(*args)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def show(name: str, causal: bool) -> None:
    """Compile one model and call it with every size."""
    torch.manual_seed(0)
    model = Model(causal).eval()
    compiled = jitshape.compile(model)
    jitshape.reset()
    print(f"\n{name}\n{'size':>10} {'compiles':>9} {'error':>9} {'eager ms':>9} {'ours ms':>9}")
    ratios = []
    with torch.no_grad():
        for b, s in SIZES:
            args = inputs(causal, b, s)
            error = (compiled(*args) - model(*args)).abs().max().item()
            compiles = jitshape.stats()["compiles"]
            eager, ours = milliseconds(model, args), milliseconds(compiled, args)
            ratios.append(eager / ours)
            print(f"{f'({b}, {s})':>10} {compiles:>9} {error:9.1e} {eager:9.2f} {ours:9.2f}")
    stats = jitshape.stats()
    print(f"compiles {stats['compiles']}, fallbacks {stats['fallbacks']}")
    if not stats["compiles"]:
        print("found on disk; JITSHAPE_CACHE=0 JITSHAPE_PROFILE=0 compiles again")
    print("calls of ATen:", ", ".join(stats["extern_ops"]))
    for number, made in enumerate(jitshape.history()):
        print(f"{made.kind} {number}: {len(made.kernels)} kernels: {', '.join(made.kernels)}")
        for failure in made.failures:
            print(f"    because {failure.demanded}, but {failure.seen} at {failure.where}")
        for reason in made.dynamic:
            print(f"    {reason}")
    print(f"speed against eager, geometric mean: {statistics.geometric_mean(ratios):.2f}")


def main() -> None:
    torch.set_num_threads(1)
    show("GPT (causal)", causal=True)
    show("BERT-like (padding mask)", causal=False)


if __name__ == "__main__":
    main()
