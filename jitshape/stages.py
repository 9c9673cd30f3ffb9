"""What surrounds the stages of a compile: their times, their errors, the garbage collector.

Invariant: what leaves a stage is the user's own exception, one of the catalogue, `Native`, or an
InternalError that names the stage.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jitshape import forks
from jitshape.errors import InternalError, JitshapeError
from jitshape.frontend import _evalframe
from jitshape.frontend.values.base import Break, Restart
from jitshape.observe import counters

if TYPE_CHECKING:
    from jitshape.frontend.guards import GuardProgram


class Native(Exception):
    """This call runs as plain Python: it raises (so that the traceback is the user's), or no
    code can leave the trace.  `program` holds for all calls of which that is known."""

    def __init__(self, reason: str, fallback: bool, program: GuardProgram | None = None) -> None:
        super().__init__(reason)
        self.reason, self.fallback, self.program = reason, fallback, program


@contextmanager
def collection_deferred() -> Iterator[None]:
    """Without the garbage collector, which would look at every object of the program, again and
    again, because a compile makes many."""
    if not gc.isenabled():
        yield
        return
    with forks.changed(gc.enable):
        gc.disable()
        yield


@contextmanager
def bypassed() -> Iterator[None]:
    """Compiled functions that this thread calls meanwhile run as they are: a back end of the
    user's may call the one that is being compiled."""
    _evalframe.push_bypass()
    try:
        yield
    finally:
        _evalframe.pop_bypass()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a stage, and name it in errors that are not the user's and not catalogued."""
    with counters.timed(name):
        try:
            yield
        except (Native, Restart, JitshapeError, RecursionError, KeyboardInterrupt, MemoryError):
            raise
        except Break as stop:
            raise Native(f"{stop.kind}: {stop.reason}", fallback=True) from stop
        except Exception as error:
            raise InternalError(name, error, _excerpt(error)) from error


def _excerpt(error: BaseException) -> str:
    """The graph round the fault; where there is no torch there are no graphs."""
    printer = sys.modules.get("jitshape.ir.printer")
    return "" if printer is None else printer.fault_excerpt(error)
