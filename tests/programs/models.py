"""Small models with random weights, and the sizes they are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SIZES = [(2, 8), (4, 12), (3, 10), (1, 5), (5, 17), (6, 16)]
VOCABULARY = 64


@dataclass(frozen=True)
class Program:
    """`make()` gives what is compiled; `inputs(b, s)` its arguments.  `compiles`: the most
    compilations with dynamic=None; a third only where the program itself branches on size 1."""

    make: Callable[[], Any]
    inputs: Callable[[int, int], tuple]
    train: bool = False
    compiles: int = 2


PROGRAMS: dict[str, Program] = {}


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (b, s))


def padding(b: int, s: int) -> torch.Tensor:
    return (torch.arange(s)[None] < torch.randint(max(1, s // 2), s + 1, (b, 1))).long()


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.tanh(x * y + 0.5) - torch.sigmoid(y) * x.abs().clamp(max=2)
    return x


class NormGelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(24), nn.LayerNorm(24)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        x = r + F.gelu(self.a(x))
        return x + F.gelu(self.b(x), approximate="tanh")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = scores.masked_fill(~(causal & mask[:, None, None, :].bool()), -1e9)
    return scores.softmax(-1) @ v


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)


class GPT(nn.Module):
    """Decoder with learned positions and tied output weights."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.heads, self.layers = heads, layers

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        b, s = i.shape
        x = self.token(i) + self.position(torch.arange(s))
        for n in range(self.layers):
            h = self.qkv[n](self.norms[2 * n](x))
            q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in h.chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out[n](a.transpose(1, 2).reshape(b, s, -1))
            x = x + self.mlp[n](self.norms[2 * n + 1](x))
        return self.norms[-1](x[:, -1]) @ self.token.weight.t()


class Keywords(nn.Module):
    """A transformers model called positionally; gives one field of its output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], field: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.field, self.fixed = model, names, field, fixed

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**dict(zip(self.names, args)), **self.fixed), self.field)


BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    names = ("input_ids", "attention_mask")
    return Keywords(BertModel(BertConfig(**BERT)), names, "last_hidden_state").eval()


def bert_masked_lm() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    names = ("input_ids", "attention_mask", "labels")
    return Keywords(BertForMaskedLM(BertConfig(**BERT)), names, "loss").train()


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
    )
    return Keywords(GPT2LMHeadModel(config), ("input_ids",), "logits", use_cache=False).eval()


def heads(b: int, s: int) -> tuple:
    return (*(torch.randn(b, 2, s, 8) for _ in range(3)), padding(b, s))


PROGRAMS["pointwise"] = Program(
    lambda: pointwise, lambda b, s: (torch.randn(b, s, 16), torch.randn(s, 16))
)
PROGRAMS["norm_gelu"] = Program(
    lambda: NormGelu().eval(), lambda b, s: (torch.randn(b, s, 24), torch.randn(b, s, 24))
)
PROGRAMS["attention"] = Program(lambda: attention, heads)
PROGRAMS["classifier"] = Program(
    Classifier, lambda b, s: (torch.randn(b * s, 16), torch.randint(5, (b * s,))), train=True
)
PROGRAMS["gpt"] = Program(lambda: GPT().eval(), lambda b, s: (ids(b, s),))
PROGRAMS["gpt_train"] = Program(GPT, lambda b, s: (ids(b, s),), train=True)
# transformers expands position ids unless the batch is 1: a branch of the program's own
PROGRAMS["gpt2"] = Program(gpt2, lambda b, s: (ids(b, s),), compiles=3)
PROGRAMS["bert"] = Program(bert, lambda b, s: (ids(b, s), padding(b, s)))
PROGRAMS["bert_masked_lm"] = Program(
    bert_masked_lm, lambda b, s: (ids(b, s), padding(b, s), ids(b, s)), train=True
)
