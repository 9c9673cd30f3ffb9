"""ATen ops known to the compiler; importing the package registers every block."""

from jitshape.ir.ops import activations, pointwise, views  # noqa: F401
