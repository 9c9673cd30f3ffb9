"""The stages as one compile."""

import gc

import torch

import jitshape
from jitshape import pipeline


def test_no_collection_within_a_compile(monkeypatch):
    collecting = []
    compile_call = pipeline.compile_call

    def observed(*args):
        collecting.append(gc.isenabled())
        return compile_call(*args)

    monkeypatch.setattr(pipeline, "compile_call", observed)
    compiled = jitshape.compile(lambda x: x * 2 + 1)
    assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
    assert collecting == [False] and gc.isenabled()
