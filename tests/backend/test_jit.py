import gc
import weakref

import pytest
import torch

from jitshape.backend import _launch, jit, runtime
from jitshape.backend.jit import compile_kernels, link_kernels, module_text
from jitshape.backend.loops import Kernel
from jitshape.cache.store import Store
from tests.backend import kernels


def test_kernels_of_one_call_share_an_engine_that_dies_with_the_last():
    two = [kernels.softmax(), kernels.transpose_add()]
    launchers = compile_kernels(two)
    assert launchers[0].engine is launchers[1].engine
    engine = weakref.ref(launchers[0].engine)
    del launchers[0]
    assert engine() is not None
    launchers.clear()
    gc.collect()
    assert engine() is None


def test_object_code_can_be_linked_again():
    kernel = kernels.softmax()
    (first,) = compile_kernels([kernel])
    code = first.engine.object_code
    assert code.startswith(b"\x7fELF")
    (again,) = link_kernels([kernel], code)
    x, out = torch.randn(4, 9), torch.empty(4, 9)
    again(x, out, 4, 9)
    torch.testing.assert_close(out, torch.softmax(x, 1))


def test_a_store_saves_making_code(tmp_path, monkeypatch):
    store, two = Store(tmp_path, "00" * 32), [kernels.softmax(), kernels.transpose_add()]
    first = compile_kernels(two, store)
    monkeypatch.setattr(jit, "_optimise", None)  # fails where code is made
    again = compile_kernels(two, store)
    assert [launcher.source for launcher in again] == [launcher.source for launcher in first]
    assert again[0].engine.object_code == first[0].engine.object_code
    x, out = torch.randn(4, 9), torch.empty(4, 9)
    again[0](x, out, 4, 9)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    with pytest.raises(TypeError):
        compile_kernels(two[:1], store)


def test_module_text_shows_the_loops_and_names_values_after_them():
    text = module_text([kernels.softmax()])
    assert "; kernel softmax(in f32 x, out f32 out, size s0, size s1):" in text
    assert ";     total sum= t2" in text.replace(";       ", ";     ")
    assert "%x." in text and "%top." in text


def test_launcher_shows_its_own_source():
    launchers = compile_kernels([kernels.softmax(), kernels.transpose_add()])
    assert "define void @softmax(" in launchers[0].source
    assert "define void @softmax(" not in launchers[1].source


def test_launcher_checks_its_arguments():
    (launch,) = compile_kernels([kernels.softmax()])
    x = torch.ones(2, 2)
    with pytest.raises(TypeError, match="kernel softmax takes 2 tensors, 2 sizes and 0 scalars"):
        launch(x, x, 2)
    with pytest.raises(TypeError):
        launch(x, x, 2, "2")
    with pytest.raises(AttributeError):
        launch(x, None, 2, 2)
    assert (launch.name, repr(launch)) == ("softmax", "<Launcher softmax>")


def test_launcher_reads_scalars():
    def scaled(x):
        return kernels.op("mul", x, kernels.SizeArgument(0, torch.float32))

    kernel = kernels.pointwise(scaled, [torch.float32], torch.float32)
    kernel = Kernel("scaled", (), kernel.body, kernel.buffers, kernel.sizes, (torch.float32,))
    (launch,) = compile_kernels([kernel])
    x, out = torch.arange(3.0), torch.empty(3)
    launch(x, out, 3, 2.5)
    assert out.tolist() == [0.0, 2.5, 5.0]
    launch(x, out, 3, 2)
    assert out.tolist() == [0.0, 2.0, 4.0]


def test_data_pointers_of_views_parameters_and_empty_tensors():
    assert runtime.read_tensors_directly()
    base = torch.arange(6.0)
    for tensor in (base[2:], torch.nn.Parameter(base), torch.empty(0), base.requires_grad_()):
        assert _launch.data_address(tensor) == tensor.data_ptr()
