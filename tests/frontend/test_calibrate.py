import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from jitshape.frontend import _evalframe, calibrate  # noqa: E402
from jitshape.frontend import checks as C  # noqa: E402
from jitshape.frontend import sources as S  # noqa: E402
from jitshape.frontend.guards import GuardSet, assemble, explain  # noqa: E402
from jitshape.ir.conditions import compare  # noqa: E402
from jitshape.ir.symint import Algebra  # noqa: E402

X, Y = S.Local(0, "x"), S.Local(1, "y")


@pytest.fixture(params=["direct", "fields"], autouse=True)
def way(request):
    assert calibrate.install()
    if request.param == "fields":
        _evalframe.set_tensor_layout(torch.Tensor, calibrate.fields, False, (0,) * 12)
    yield request.param
    _evalframe.set_tensor_layout(torch.Tensor, calibrate.fields, True, calibrate.find_offsets())


def matches(t, sizes=None, strides=None, is_leaf=None):
    return C.TensorMatches(
        type(t),
        t.dtype,
        t.device,
        calibrate.dispatch_keys(t),
        tuple(t.shape) if sizes is None else sizes,
        tuple(t.stride()) if strides is None else strides,
        t.requires_grad,
        is_leaf,
    )


def program(*guards, extract=()):
    found = GuardSet()
    for guard in guards:
        found.add(*guard)
    return assemble(found, extract)


def test_every_property_is_compared():
    x = torch.ones(4, 6)
    p = program((X, matches(x, is_leaf=True), "m.py:2 in f"))
    assert p.run((torch.zeros(4, 6),)) == ()
    with torch.inference_mode():
        inference = torch.ones(4, 6)
    others = {
        "dtype is torch.float64": torch.ones(4, 6, dtype=torch.float64),
        "device is meta": torch.ones(4, 6, device="meta"),
        "dim() is 3": torch.ones(4, 6, 1),
        "size(1) is 7, stride(0) is 7": torch.ones(4, 7),
        "stride(0) is 1, stride(1) is 4": torch.ones(6, 4).t(),
        "requires_grad is True": torch.ones(4, 6).requires_grad_(),
        "type is Parameter": torch.nn.Parameter(x),
        "type is int": 3,
        "dispatch key set is another": inference,
    }
    for seen, other in others.items():
        failure = explain(p, (other,))
        assert failure is not None and seen in failure.observed, (seen, failure)
    assert str(explain(p, (torch.ones(4, 7),))) == (
        "x is Tensor float32[4, 6] on cpu failed: size(1) is 7, stride(0) is 7   # m.py:2 in f"
    )


def test_strides_of_small_dimensions_and_dynamic_ones_are_free():
    x = torch.ones(3, 1, 5)
    p = program((X, matches(x)))
    assert p.run((torch.empty_strided((3, 1, 5), (5, 77, 1)),)) == ()
    dynamic = program((X, matches(x, sizes=(None, 1, 5), strides=(None, None, 1))))
    assert dynamic.run((torch.ones(9, 1, 5),)) == ()
    assert dynamic.run((torch.ones(9, 2, 5),)) is None
    assert dynamic.run((torch.empty_strided((9, 1, 5), (1, 1, 9)),)) is None


def test_leaf_and_grad():
    leaf = torch.ones(3).requires_grad_()
    p = program((X, matches(leaf, is_leaf=True)))
    assert p.run((leaf,)) == () and p.run((leaf * 2,)) is None
    assert program((X, matches(leaf))).run((leaf * 2,)) == ()
    assert p.run((leaf.detach(),)) is None


def test_numbers_and_relations():
    x = torch.as_strided(torch.ones(100), (3, 4), (10, 2), 7)
    six = torch.ones(1, 2, 1, 2, 1, 3)
    numbers = [S.Number(X, "size", 1), S.Number(X, "stride", 0), S.Number(X, "offset")]
    p = program(extract=[*numbers, S.Number(Y, "size", 5), S.Number(Y, "stride", 3), Y])
    assert p.run((x, six)) == (4, 10, 7, 3, 3, six)
    assert p.run((x, x)) is None and p.run((3, six)) is None
    algebra = Algebra()
    s0, s1 = algebra.symbol("s0"), algebra.symbol("s1")
    symbols = (("s0", numbers[0]), ("s1", S.Number(Y, "size", 0)))
    p = program((numbers[0], C.Holds(compare("eq", s0, s1), symbols), "m.py:9 in f"))
    assert p.run((x, torch.ones(4))) == ()
    assert str(explain(p, (x, torch.ones(5)))) == (
        "x.size(1) == y.size(0) failed: x.size(1) = 4, y.size(0) = 5   # m.py:9 in f"
    )


def test_overlap():
    base = torch.ones(20)
    a, b = base[:10], base[10:]
    p = program((X, matches(a)), (Y, matches(b)), (X, C.NoOverlap(Y)))
    assert p.run((a, b)) == () and p.run((b, a)) == ()
    assert p.run((a, base[9:19])) is None and p.run((a, a)) is None
    assert p.run((a, torch.ones(10))) == ()


def test_getters():
    x = torch.ones(3).requires_grad_()
    grad = S.Getter(X, "grad")
    p = program((grad, C.Equals(None)))
    assert p.run((x,)) == ()
    x.sum().backward()
    assert p.run((x,)) is None
    assert program(extract=[grad]).run((x,))[0] is x.grad


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("grad_mode", torch.no_grad),
        ("inference_mode", torch.inference_mode),
        ("dispatch_keys", torch.inference_mode),
        ("dispatch_keys", lambda: torch.autocast("cpu")),
        ("autocast", lambda: torch.autocast("cpu")),
        ("autocast", lambda: torch.autocast("cpu", dtype=torch.float16)),
        ("default_device", lambda: torch.device("meta")),
        ("mode_stacks", lambda: torch.device("meta")),
        ("mode_stacks", lambda: torch.autograd.graph.saved_tensors_hooks(abs, abs)),
    ],
)
def test_ambient_state_is_seen(name, mode):
    p = program((None, C.Ambient(name, calibrate.AMBIENT[name]())))
    assert p.run(()) == ()
    with mode():
        assert p.run(()) is None
        inside = program((None, C.Ambient(name, calibrate.AMBIENT[name]())))
        assert inside.run(()) == ()
    assert p.run(()) == () and inside.run(()) is None


def test_ambient_default_dtype():
    p = program((None, C.Ambient("default_dtype", torch.float32)))
    torch.set_default_dtype(torch.float64)
    try:
        assert p.run(()) is None
    finally:
        torch.set_default_dtype(torch.float32)
    assert p.run(()) == ()


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_first_compile_may_come_in_any_mode(mode):
    fast = set(calibrate.FAST_AMBIENT)
    assert fast >= {"autocast", "default_dtype", "dispatch_keys", "grad_mode", "inference_mode"}
    for cached in (calibrate.install, calibrate.kind_word, calibrate.dtype_code):
        cached.cache_clear()
    calibrate.FAST_AMBIENT.clear()
    torch.set_default_dtype(torch.float64)
    try:
        with MODES[mode]():
            assert calibrate.install()
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(calibrate.FAST_AMBIENT) == fast


def test_the_frontend_imports_without_torch():
    modules = "guards guard_program emit checks sources _evalframe".split()
    code = "import sys\n" + "".join(f"import jitshape.frontend.{m}\n" for m in modules)
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)
