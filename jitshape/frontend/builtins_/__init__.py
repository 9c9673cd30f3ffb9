"""How C functions and built-in classes behave on values: importing this registers all of them,
and with them the wrappers and builders of values/*."""

from jitshape.frontend.builtins_ import (  # noqa: F401
    context,
    formatting,
    functions,
    iteration,
    library,
    mappings,
    numbers,
    objects,
    references,
    remembered,
    sequences,
    sets,
)
from jitshape.frontend.values import exceptions  # noqa: F401
