from jitshape.backend.text import kernel_text
from tests.backend import kernels


def test_softmax_text():
    assert (
        kernel_text(kernels.softmax())
        == """\
kernel softmax(in f32 x, out f32 out, size s0, size s1):
  parallel i0 < s0:
    f32 top = max()
    vector i1 < s1:
      f32 t0 = x[s1*i0 + i1]
      top max= t0
    f32 total = sum()
    vector i1 < s1:
      f32 t1 = x[s1*i0 + i1]
      f32 t2 = exp(t1 - top)
      total sum= t2
    vector i1 < s1:
      f32 t3 = x[s1*i0 + i1]
      f32 t4 = exp(t3 - top)
      out[s1*i0 + i1] = t4 / total
"""
    )


def test_masked_and_indirect_text():
    assert (
        kernel_text(kernels.concatenate())
        == """\
kernel concatenate(in f32 x, in f32 y, out f32 out, size s0, size s1):
  vector i0 < s0 + s1:
    b1 t0 = i64(i0) < i64(s0)
    out[i0] = where(t0, x[i0] if t0 else 0.0, y[i0 - s0] if not(t0) else 0.0)
"""
    )
    assert "out[t0; t0=index[i0]] += x[i0]" in kernel_text(kernels.scatter_add())


def test_names_of_what_is_computed_are_those_of_nothing_else():
    kernel = kernels.softmax()
    total = next(s for s in kernel.statements() if getattr(s, "accumulators", ())).accumulators[0]
    total.name = "t1"
    text = kernel_text(kernel)
    assert "f32 t1 = max()" in text and "f32 t1 = x" not in text and "f32 t2 = x" in text
