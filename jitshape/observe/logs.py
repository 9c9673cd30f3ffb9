"""Log artefacts, switched on by JITSHAPE_LOGS or `set_logs`.

`JITSHAPE_LOGS=dynamic,guards` shows these two; `+name` shows more of it (debug level), `-name`
takes it out again, `all` is every artefact.  Each artefact is the stdlib logger
"jitshape.<name>"; warnings go to "jitshape" and are always shown.
"""

from __future__ import annotations

import logging
import sys

from jitshape.errors import UnknownOption

ARTEFACTS = {
    "dynamic": "symbols, facts and specialisations, with their lines",
    "guards": "the guards of every entry, with the user lines that made them",
    "recompiles": "which guard failed, with the values seen",
    "graph_breaks": "where and why a graph ended",
    "bytecode": "the code that replaces a function",
    "graph": "the graph as recorded",
    "functional": "the graph after the passes",
    "schedule": "loop IR, and why kernels were or were not fused",
    "output_code": "generated kernels and programs",
    "cache": "hits and misses of every cache level",
}

_root = logging.getLogger("jitshape")
_loggers = {name: logging.getLogger(f"jitshape.{name}") for name in ARTEFACTS}
_shown: dict[str, int] = {}


class _Handler(logging.StreamHandler):
    """Writes to the stderr of the moment, so that capturing it works."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    @property
    def stream(self):  # type: ignore[override]
        return sys.stderr

    @stream.setter
    def stream(self, value) -> None:
        pass


def set_logs(spec: str) -> None:
    """Show the artefacts in `spec`, in the form of JITSHAPE_LOGS; "" shows none.

    Raises UnknownOption for a name that is not in ARTEFACTS."""
    if not isinstance(spec, str):
        raise UnknownOption(
            f"set_logs({spec!r})", because="it takes a str", avoid='write "dynamic,guards"'
        )
    chosen: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in spec.split(","))):
        sign, name = (item[0], item[1:]) if item[0] in "+-" else ("", item)
        if name == "all":
            level = logging.DEBUG if sign == "+" else logging.INFO
            chosen = {} if sign == "-" else dict.fromkeys(ARTEFACTS, level)
            continue
        if name not in ARTEFACTS:
            raise UnknownOption(
                f"unknown log {name!r}",
                because=f"known logs are {', '.join(ARTEFACTS)}",
                avoid="correct its spelling",
            )
        if sign == "-":
            chosen.pop(name, None)
        else:
            chosen[name] = logging.DEBUG if sign == "+" else logging.INFO
    _shown.clear()
    _shown.update(chosen)
    for name, logger in _loggers.items():
        logger.setLevel(chosen.get(name, logging.CRITICAL))


def enabled(name: str) -> bool:
    """Whether anybody sees this artefact: ask before building a dear text."""
    return name in _shown


def log(name: str, text: str, *, debug: bool = False) -> None:
    """Write `text` to artefact `name`, each line behind its name."""
    level = logging.DEBUG if debug else logging.INFO
    logger = _loggers[name]
    if logger.isEnabledFor(level):
        logger.log(level, "\n".join(f"[{name}] {line}" for line in text.splitlines()))


def warn(text: str) -> None:
    """A warning of jitshape's own, always shown."""
    _root.warning("[jitshape] %s", text)


def _install() -> None:
    if not any(isinstance(h, _Handler) for h in _root.handlers):
        handler = _Handler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        _root.addHandler(handler)
        _root.propagate = False
        _root.setLevel(logging.WARNING)


_install()
