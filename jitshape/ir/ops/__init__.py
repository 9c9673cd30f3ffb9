"""ATen ops known to the compiler; importing the package registers every block."""

# isort: off
from jitshape.ir.ops import (  # noqa: F401
    activations,
    attention,
    branching,
    copying,
    factories,
    generator,
    indexing,
    losses,
    matmul,
    normalization,
    parts,
    pointwise,
    pools,
    random,
    rearranging,
    reductions,
    refusals,
    resampling,
    rnn,
    softmax,
    streams,
    views,
)
from jitshape.ir.ops import inplace  # noqa: F401  after the ops it derives from
