"""What `fullgraph=True` says of programs that cannot be captured whole."""

import inspect
import re

import pytest
import torch

import jitshape
from jitshape.errors import GraphBreak
from jitshape.observe.records import BreakRecord, records


def refuse(f, *args):
    jitshape.reset()
    with pytest.raises(GraphBreak) as caught:
        jitshape.compile(f, fullgraph=True)(*args)
    return re.sub(r"/\S*/(?=tests/)", "", str(caught.value))


def fullgraph_branch(x):
    if (x * 2).sum() > 0:
        return x
    return -x


def fullgraph_print(x):
    y = x + 1
    print("y is", y)
    return y


def fullgraph_item(x):
    scale = x.max().item()
    return x * scale if scale > 0 else x


@jitshape.disable
def opaque(x):
    return 2


def fullgraph_disabled(x):
    return x * opaque(x)


def test_fullgraph_messages(golden):
    programs = (fullgraph_branch, fullgraph_print, fullgraph_item, fullgraph_disabled)
    texts = [refuse(f, torch.ones(3, 4)) for f in programs]
    golden("fullgraph_errors", "\n\n".join(texts) + "\n")


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        h = self.small(x)
        if h.norm() > 1:
            return self.large(h)
        return h


class Printing(torch.nn.Module):
    def forward(self, x):
        y = x.exp()
        print("exp is", y)
        return y + 1


class Opaque(torch.nn.Module):
    def forward(self, x):
        return x.sin() * opaque(x)


@pytest.mark.parametrize("model", [Routed, Printing, Opaque])
def test_a_break_says_what_the_error_of_fullgraph_says(model, capsys):
    module, x = model(), torch.ones(3, 4)
    error = refuse(module, x)
    jitshape.reset()
    torch.testing.assert_close(jitshape.compile(module)(x), module(x))
    (broken,) = (r for r in records() if isinstance(r, BreakRecord))
    place = re.sub(r"/\S*/(?=tests/)", "", broken.where)
    assert f"  at       {place}   {broken.line}\n" in error
    assert f"  because  {broken.reason}\n" in error
    assert broken.line in inspect.getsource(model.forward)
    assert error.endswith(f"  to avoid {broken.remedy or 'compile without fullgraph=True'}")
