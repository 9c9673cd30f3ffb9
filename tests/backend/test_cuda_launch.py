"""Launches through the driver: what it is given, by a driver that only notes it."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from jitshape.backend import cuda_launch
from jitshape.backend._launch import DeviceLaunch
from jitshape.backend.cuda_launch import Started, declaration, direct_launch
from jitshape.backend.quality import goal
from jitshape.backend.triton_jit import launcher_of
from tests.backend import kernels

DRIVER = """
#include <string.h>
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} Config;
Config config;
void *function;
unsigned char given[16][8];
int calls, status, parameters;
int cuLaunchKernelEx(const Config *c, void *f, void **values, void **extra)
{
    config = *c, function = f, calls++;
    for (int i = 0; i < parameters; i++) {
        memcpy(given[i], values[i], 8);
    }
    return extra ? 1000 : status;
}
"""


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


class FakeDriver:
    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        function = self.library.cuLaunchKernelEx
        self.address = ctypes.cast(function, ctypes.c_void_p).value

    def number(self, name):
        return ctypes.c_int.in_dll(self.library, name)

    @property
    def config(self):
        return Config.in_dll(self.library, "config")

    def given(self, place, kind):
        table = (ctypes.c_ubyte * 128).in_dll(self.library, "given")
        return kind.from_buffer(table, place * 8).value


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler, which the driver that is faked here is made by")
    folder = tmp_path_factory.mktemp("driver")
    source, path = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture
def driver(library):
    found = FakeDriver(library)
    for name in ("calls", "status", "parameters"):
        found.number(name).value = 0
    return found


def launch_of(driver, kinds, threads=128, shared=512):
    return DeviceLaunch("kernel", driver.address, 0xBEEF, threads, shared, kinds, None)


def test_every_kind_of_parameter_arrives(driver):
    launch = launch_of(driver, "pildnn")
    driver.number("parameters").value = 6
    x = torch.arange(12.0)[3:]
    launch(7, 0xCAFE, x, -5, 2**40, 2.5)
    assert driver.given(0, ctypes.c_void_p) == x.data_ptr()
    assert driver.given(1, ctypes.c_int32) == -5
    assert driver.given(2, ctypes.c_int64) == 2**40
    assert driver.given(3, ctypes.c_double) == 2.5
    assert driver.given(4, ctypes.c_void_p) is None and driver.given(5, ctypes.c_void_p) is None
    config = driver.config
    assert list(config.grid) == [7, 1, 1] and list(config.block) == [128, 1, 1]
    assert (config.shared, config.stream, config.attributes, config.count) == (512, 0xCAFE, None, 0)
    assert ctypes.c_void_p.in_dll(driver.library, "function").value == 0xBEEF


def test_what_does_not_fit_is_refused(driver):
    launch = launch_of(driver, "pi")
    x = torch.zeros(3)
    with pytest.raises(OverflowError, match="does not fit 32 bits"):
        launch(1, 0, x, 2**31)
    with pytest.raises(OverflowError, match="a grid of"):
        launch(2**31, 0, x, 1)
    with pytest.raises(TypeError, match="a grid, a stream and 2 arguments"):
        launch(1, 0, x)
    with pytest.raises(AttributeError):
        launch(1, 0, "x", 1)
    with pytest.raises(ValueError, match="a parameter of kind q"):
        launch_of(driver, "q")
    with pytest.raises(ValueError, match="needs the driver's function"):
        DeviceLaunch("kernel", 0, 1, 32, 0, "p", None)
    launch(0, 0, x, 1)
    assert driver.number("calls").value == 0


def test_errors_of_the_driver_are_raised(driver):
    launch = launch_of(driver, "p")
    driver.number("status").value = 700
    with pytest.raises(RuntimeError, match="kernel kernel was not started: CUDA error 700"):
        launch(1, 0, torch.zeros(1))


# ---- binaries of Triton


@functools.cache
def compiled(build):
    return launcher_of(build()).ahead_of_time(goal("sm_90"), True)


def loaded(build, **changed):
    """A binary for a device that is not there, as if it had been loaded."""
    binary = compiled(build)
    code = binary.code
    metadata = SimpleNamespace(**(code.metadata._asdict() | changed))
    return binary, SimpleNamespace(asm=dict(code.asm), function=0xF00D, metadata=metadata)


def test_parameters_are_those_that_the_code_declares(driver):
    binary, code = loaded(kernels.layernorm)
    launch = direct_launch(code, binary.types, driver.address)
    assert launch is not None and launch.name == code.metadata.name
    declared, threads = declaration(code.asm["ptx"])
    assert threads == 32 * code.metadata.num_warps
    assert len(declared) == len(binary.types) + 2  # Triton's scratch
    driver.number("parameters").value = len(declared)
    x, w, b, out, mean = torch.zeros(4, 37), *(torch.zeros(37) for _ in range(4))
    launch(4, 0, x, w, b, out, mean, 4, 37, 1e-5)
    assert driver.given(0, ctypes.c_void_p) == x.data_ptr()
    assert driver.given(6, ctypes.c_int32) == 37 and driver.given(7, ctypes.c_double) == 1e-5
    assert driver.config.shared == code.metadata.shared


def test_products_are_launched_too(driver):
    from tests.backend.test_triton_products import HALF, launcher

    launch = launcher(dtype=HALF)
    binary = launch.ahead_of_time(goal("sm_90"), True)
    code = SimpleNamespace(asm=binary.code.asm, function=1, metadata=binary.code.metadata)
    assert direct_launch(code, binary.types, driver.address) is not None
    assert binary.constants[-1] == "tf32"


@pytest.mark.parametrize(
    "changed",
    [
        {"num_ctas": 2},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"global_scratch_size": 16},
        {"profile_scratch_size": 16},
        {"num_warps": 16},
    ],
    ids=str,
)
def test_what_needs_more_goes_through_triton(driver, changed):
    binary, code = loaded(kernels.softmax, **changed)
    assert direct_launch(code, binary.types, driver.address) is None


def test_other_parameters_go_through_triton(driver):
    binary, code = loaded(kernels.softmax)
    assert direct_launch(code, binary.types[:-1], driver.address) is None
    assert direct_launch(code, ("fp16", *binary.types[1:]), driver.address) is None


# ---- on a device


@pytest.fixture
def device(monkeypatch, library):
    """A device whose driver only notes what it is given, and whose current stream is 77."""
    monkeypatch.setattr(cuda_launch, "DRIVER", str(library))
    cuda_launch.driver_function.cache_clear()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77 + index, False)
    yield torch.device("cuda", 0)
    cuda_launch.driver_function.cache_clear()


def test_kernels_are_queued_on_the_current_stream(device, driver):
    binary, code = loaded(kernels.softmax)
    code._init_handles = lambda: None
    start = Started(code, device, binary.types, binary.constants)
    x = torch.zeros(5, 32)
    start(5, x, x, 5, 32)
    assert driver.number("calls").value == 1 and driver.config.stream == 77
    start(0, x, x, 5, 32)
    assert driver.number("calls").value == 1


def test_a_profiler_sees_launches(device, driver, monkeypatch):
    binary, _ = loaded(kernels.softmax)
    seen = []

    class Watched:
        def __getitem__(self, grid):
            return lambda *args: seen.append((grid, args))

    monkeypatch.setattr(cuda_launch, "is_watched", lambda: True)
    Started(Watched(), device, binary.types, binary.constants)(3, "x", "y", 5, 32)
    assert seen == [((3, 1, 1), ("x", "y", 5, 32, *binary.constants))]
    assert driver.number("calls").value == 0


def test_without_a_driver():
    cuda_launch.driver_function.cache_clear()
    assert cuda_launch.driver_function() == 0 or torch.cuda.is_available()
