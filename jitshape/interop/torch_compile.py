"""jitshape as a back end of torch.compile: `torch.compile(f, backend="jitshape")`.

In: what torch.compile captured, an fx module, with the inputs it was captured for.  Out: the
compiled module.  Invariant: a size is symbolic exactly where torch.compile has it symbolic, so
what it guards is what we compile for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from jitshape import api
from jitshape.dims import Dim


def jitshape_backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The entry point of the group torch_dynamo_backends.  `options`: those of jitshape.compile,
    and its `backend`."""
    rest = dict(options or {})
    backend = rest.pop("backend", "auto")
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    spec = tuple(
        _spec(node.meta.get("example_value", given))  # the symbolic one, where it is kept
        for node, given in zip(placeholders, example_inputs)
    )
    named = torch.fx.GraphModule(module, module.graph)  # its forward has the arguments' names
    return api.compile(named.forward, dynamic_shapes=spec, backend=backend, options=rest)


def _spec(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return {d: Dim.AUTO for d, size in enumerate(given.shape) if type(size) is not int}
    return None if type(given) is int else Dim.AUTO
