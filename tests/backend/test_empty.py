import gc
import os
import re
import subprocess
import sys
import weakref

import pytest
import torch

import jitshape
from jitshape.backend import _launch, empty
from tests.cache.process import ROOT

MADE_DIRECTLY = empty.makes_tensors_directly()
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float16]


def huge_pages_in(tensor):
    """Whether the memory of `tensor` was asked for in huge pages, as the kernel tells it."""
    flags, inside = "", False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if area:
                low, high = (int(x, 16) for x in area.groups())
                inside = low <= tensor.data_ptr() + tensor.nbytes // 2 < high
            elif inside and line.startswith("VmFlags"):
                flags = line
    return "hg" in flags.split()


@pytest.mark.skipif(not MADE_DIRECTLY, reason="this torch has no such interface")
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_those_of_torch(dtype):
    make = empty.empty_of(dtype)
    assert isinstance(make, _launch.Empty)
    for shape, strides in (((), ()), ((3,), (1,)), ((2, 0, 4), (4, 4, 1)), ((2, 3), (1, 2))):
        made, expected = make(shape, strides), make.otherwise(shape, strides)
        assert made.dtype is dtype and made.shape == shape and made.stride() == strides
        assert empty._traits(made) == empty._traits(expected)
    assert made.resize_(100, 3).shape == (100, 3)


def test_memory_is_given_back():
    made = empty.empty_of(torch.float32)((1000,), (1,))
    dead = weakref.ref(made.untyped_storage()), weakref.ref(made)
    del made
    gc.collect()
    assert [one() for one in dead] == [None, None]


def test_errors_are_those_of_torch():
    make = empty.empty_of(torch.float32)
    with pytest.raises(RuntimeError, match=r"empty_strided|[Nn]egative"):
        make((-1, 2), (2, 1))
    with pytest.raises(RuntimeError):
        make((2, 3), (1,))
    with pytest.raises(RuntimeError):
        make((1 << 61, 4), (4, 1))


IN_A_NEW_PROCESS = """
from jitshape.backend import empty
from tests.backend.test_empty import huge_pages_in

make = empty.empty_of(__import__("torch").float32)
small, large = make((1 << 20,), (1,)), make((1 << 24,), (1,))
print(huge_pages_in(small), huge_pages_in(large))
"""


@pytest.mark.skipif(not MADE_DIRECTLY, reason="this torch has no such interface")
def test_only_large_memory_is_asked_for_in_huge_pages():
    """In a process whose allocator has no memory that was asked for so before."""
    try:
        with open("/proc/self/smaps") as maps:
            known = "VmFlags" in maps.read()
    except OSError:
        known = False
    if known:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", IN_A_NEW_PROCESS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["False", "True"]


def test_without_the_interface_torch_makes_them():
    _launch.use_aten(0, 0, 0, 0)
    try:
        made = _launch.Empty(6, 4, lambda shape, strides: (shape, strides))
        assert made((2, 3), (3, 1)) == ((2, 3), (3, 1))
    finally:
        empty.makes_tensors_directly.__wrapped__()


def test_what_does_not_agree_is_not_used():
    make = empty.empty_of(torch.float32)
    doubles = empty.empty_of(torch.float64)
    assert empty.agrees(make, make) and not empty.agrees(make, doubles)


def test_results_of_programs_can_be_changed_as_others():
    f = jitshape.compile(lambda x: x + 1, dynamic=True)
    out = f(torch.ones(3, 4))
    out.resize_(5, 6).fill_(2)
    assert out.sum() == 60 and out.is_leaf and not out.requires_grad
    with torch.inference_mode():
        assert f(torch.ones(3, 4)).is_inference()
