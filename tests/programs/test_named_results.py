"""Results of torch that have names: torch.return_types."""

import pytest
import torch

import jitshape

PROGRAMS = {
    "max": lambda x: x - x.max(dim=-1, keepdim=True).values,
    "sort": lambda x: torch.sort(x).indices,
    "topk": lambda x: torch.topk(x, 2).values + torch.topk(x, 2)[1],
    "qr": lambda x: torch.linalg.qr(x).R.abs(),
    "whole": lambda x: x.min(dim=0),
    "unpacked": lambda x: [t + 1 for t in x.median(dim=0)],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_items_by_name(name):
    compiled = jitshape.compile(PROGRAMS[name], fullgraph=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 4)
        found, expected = compiled(x), PROGRAMS[name](x)
        assert type(found) is type(expected)
        torch.testing.assert_close(tuple(found), tuple(expected))
