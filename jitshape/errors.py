"""Errors that jitshape raises itself: one class per cause.

Every message says where (the user's line), why, and what to do.  Exceptions of the user's own
code pass through unchanged and are not of these classes.
"""

from __future__ import annotations


class JitshapeError(Exception):
    """Base of all errors of jitshape."""

    def __init__(
        self, what: str, *, where: str = "", because: str = "", so: str = "", avoid: str = ""
    ) -> None:
        self.what, self.where, self.because, self.so, self.avoid = what, where, because, so, avoid
        rows = (("at", where), ("because", because), ("so", so), ("to avoid", avoid))
        lines = [what] + [f"  {key:<8} {text}" for key, text in rows if text]
        super().__init__("\n".join(lines))


class NotCallable(JitshapeError, TypeError):
    """`jitshape.compile` got something that cannot be called."""


class UnknownOption(JitshapeError, ValueError):
    """An option, backend, mode or log name that does not exist."""


class BadBackend(JitshapeError, TypeError):
    """A back end of the user's does not give what the graph needs."""


class BadMark(JitshapeError, ValueError):
    """Marks of a tensor contradict each other, the tensor itself, or `dynamic_shapes`."""


class BadDimension(JitshapeError, IndexError):
    """A mark of a dimension that the tensor does not have."""


class BadSpec(JitshapeError, ValueError):
    """`dynamic_shapes` does not fit the function, or the call."""


class BrokenPromise(JitshapeError, RuntimeError):
    """A size that was marked or declared dynamic is needed as one value, or in a part of its
    range; the message names the line and the other tensor that force it."""


class UnsupportedEnvironment(JitshapeError, RuntimeError):
    """This CPython or torch is not supported, or failed a self-test."""


class UnsupportedTensor(JitshapeError, RuntimeError):
    """A tensor on a device or of a layout that jitshape has no kernels for."""


class GradientIsNan(JitshapeError, RuntimeError):
    """Anomaly detection is on, and a gradient in the compiled backward is not a number."""


class GraphBreak(JitshapeError, RuntimeError):
    """`fullgraph=True` and the program cannot be captured whole."""


class RecompileRefused(JitshapeError, RuntimeError):
    """set_stance("fail_on_recompile") is in force and no entry serves the call."""


class ShadowDifference(JitshapeError, RuntimeError):
    """JITSHAPE_SHADOW found a call whose compiled result is not eager's."""


class DataDependent(JitshapeError, RuntimeError):
    """A decision needs a number that exists only when the graph runs: `condition`, a size or a
    condition on sizes."""

    condition: object = None


class Refuted(RuntimeError):
    """A number that exists only when the graph runs does not fit what was assumed of it, or an op
    `raised`.  Nothing that a program could observe has happened yet: the call can be made again
    without the graph.  `assumption` names what failed; `random_state` is that of the generator
    before the graph."""

    def __init__(
        self,
        message: str,
        assumption: str,
        random_state: object = None,
        raised: Exception | None = None,
    ) -> None:
        super().__init__(message)
        self.assumption, self.random_state, self.raised = assumption, random_state, raised


class DoubleBackward(JitshapeError, RuntimeError):
    """A gradient of a gradient was asked of a compiled graph."""


class InternalError(JitshapeError, RuntimeError):
    """A stage of jitshape failed; the message names the stage and shows the IR round the fault."""

    def __init__(self, stage: str, cause: BaseException, excerpt: str = "") -> None:
        self.stage = stage
        super().__init__(
            f"internal error in stage '{stage}': {type(cause).__name__}: {cause}"
            + (f"\n{excerpt}" if excerpt else ""),
            avoid="options={'suppress_errors': True} runs this function eagerly; please report it",
        )
