"""Pooling and resampling in programs: whole graphs, gradients, sizes that change."""

import pytest
import torch
import torch.nn.functional as F

import jitshape

PROGRAMS = {
    "max": lambda x: F.max_pool2d(torch.relu(x), 2) * 2,
    "max_padded": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "avg": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, stride=2, ceil_mode=True),
    "adaptive_one": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest_size": lambda x: F.interpolate(x, size=(5, 11)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "stack": lambda x: F.interpolate(F.avg_pool2d(F.max_pool2d(x, 2), 2), scale_factor=2.0).mean(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    function = PROGRAMS[name]
    jitshape.reset()
    compiled = jitshape.compile(function, dynamic=True, fullgraph=True)
    for shape in ((2, 3, 8, 9), (3, 3, 13, 12), (2, 5, 16, 16)):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        want, got = function(x), compiled(y)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        grad = torch.randn_like(want)
        want.backward(grad)
        got.backward(grad)
        torch.testing.assert_close(y.grad, x.grad)
    stats = jitshape.stats()
    assert stats["compiles"] == 1 and not stats["fallbacks"]


LARGE = {
    "max": lambda x: F.max_pool2d(x, 9, 1, 4),
    "max with places": lambda x: F.max_pool2d(x, (7, 6), 2, 3, return_indices=True)[0],
    "mean": lambda x: F.avg_pool2d(x, 7, 2, 3, count_include_pad=False),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_windows_are_calls_of_aten(name):
    function = LARGE[name]
    jitshape.reset()
    compiled = jitshape.compile(function, fullgraph=True)
    for n in (12, 15, 18):
        x = torch.randn(2, 3, n, n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = compiled(x), function(y)
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, y.grad)
    assert jitshape.stats()["extern_ops"]
    assert not jitshape.stats()["fallbacks"]


VOLUMES = {  # [channels, depth, height, width], from a base with the channels inside
    "inside": lambda x: x.permute(3, 0, 1, 2),
    "inside, gaps among channels": lambda x: x.permute(3, 0, 1, 2)[::2],
    "inside, gaps in depth": lambda x: x.permute(3, 0, 1, 2)[:, ::2],
    "inside, a batch of one": lambda x: x.permute(3, 0, 1, 2)[None],
    "row-major": lambda x: x,
}


@pytest.mark.parametrize("name", VOLUMES)
@pytest.mark.parametrize("shape", [(6, 6, 7, 4), (5, 4, 4, 1), (4, 3, 3, 3)])
def test_a_single_volume_keeps_channels_inside_where_it_has_no_gaps(name, shape):
    volume = VOLUMES[name]

    def f(x):
        return F.max_pool3d(volume(x), (2, 1, 1), stride=1, return_indices=True)

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True, fullgraph=True)
    x = torch.randn(shape)
    for found, expected in zip(compiled(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
