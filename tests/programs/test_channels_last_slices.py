"""Images whose channels lie inside with gaps: slices of the last dimension, seen as channels."""

import pytest
import torch
import torch.nn.functional as F

import jitshape

WEIGHT = torch.randn(4, 4, 3, 3)
DEPTHWISE = torch.randn(4, 1, 3, 3)


def channels(x):
    return x[..., 4:8].permute(0, 3, 1, 2)


PROGRAMS = {
    "convolution": lambda x: F.conv2d(channels(x), WEIGHT, padding=1),
    "depthwise": lambda x: F.conv2d(channels(x), DEPTHWISE, groups=4),
    "joined": lambda x: torch.cat(
        (x[..., :4], F.conv2d(channels(x), WEIGHT, padding=1).permute(0, 2, 3, 1)), -1
    ),
    "pooled": lambda x: F.max_pool2d(channels(x), 2) + 1,
    "normed": lambda x: F.group_norm(channels(x), 2) * 2,
    "cat": lambda x: torch.cat((channels(x), channels(x) + 1), 1),
    "padded": lambda x: F.pad(channels(x), (1, 2)),
    "resized": lambda x: F.interpolate(channels(x), scale_factor=2.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_strides(name):
    function = PROGRAMS[name]
    compiled = jitshape.compile(function, fullgraph=True)
    for batch, size in ((2, 6), (3, 6), (2, 8)):
        x = torch.randn(batch, size, size, 12, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = compiled(x), function(y)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        found.sin().sum().backward()
        expected.sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
