"""What `fullgraph=True` says of programs that cannot be captured whole."""

import re

import pytest
import torch

import jitshape
from jitshape.errors import GraphBreak


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
