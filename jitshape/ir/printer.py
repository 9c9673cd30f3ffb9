"""The graph as Python text.

In: a graph.  Out: the text of a function whose statements are the graph's nodes, with types as
comments and the user's lines between them.  The same text is log, golden file and bug report.
Invariant: the text parses as Python, and equal graphs print equal text on every machine (files
are named without their folder).
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator
from typing import Any

import torch

from jitshape.ir.graph import Alias, Graph, Location, Node, OutputAlias, Value, subgraphs_of
from jitshape.ir.types import ScalarType, TensorType

_COLUMN = 48  # where type comments start
_PLAIN_OVERLOADS = ("default", "Tensor")


def print_graph(graph: Graph, name: str = "forward") -> str:
    """All of `graph` as one function."""
    return "\n".join(_lines(graph, name, graph.nodes)) + "\n"


def excerpt(graph: Graph, node: Node | None, around: int = 4) -> str:
    """The nodes near `node`, which is marked; for messages about a fault there."""
    if node is None or node not in graph.nodes:
        return print_graph(graph)
    at = graph.nodes.index(node)
    first = max(0, at - around)
    lines = [f"    ... {first} nodes before"] if first else []
    for line_node in graph.nodes[first : at + around + 1]:
        text = _statement(line_node)
        lines.append("--> " + text if line_node is node else "    " + text)
    behind = len(graph.nodes) - (at + around + 1)
    return "\n".join(lines + ([f"    ... {behind} nodes after"] if behind > 0 else []))


def fault_excerpt(error: BaseException, graph: Graph | None = None) -> str:
    """The IR round the fault: the node, and the graph, that the innermost frames of the error's
    traceback were working on; failing that the end of `graph`."""
    node, trace = None, error.__traceback__
    while trace is not None:
        for held in trace.tb_frame.f_locals.values():
            if isinstance(held, Node) and held.op:
                node = held
            elif isinstance(held, Graph):
                graph = held
        trace = trace.tb_next
    if graph is None:
        return ""
    if node is not None and node in graph.nodes:
        return excerpt(graph, node)
    lines = print_graph(graph).splitlines()
    return "\n".join(lines[:1] + ["    ..."] * (len(lines) > 21) + lines[1:][-20:])


def op_name(op: str) -> str:
    """ "aten.add.Tensor" -> "add"; an overload that is not the ordinary one is kept."""
    namespace, packet, overload = op.split(".")
    short = packet if overload in _PLAIN_OVERLOADS else f"{packet}.{overload}"
    return short if namespace == "aten" else f"{namespace}.{short}"


def format_argument(leaf: Any) -> str:
    """One argument as Python: values and sizes by name, constants as literals."""
    if isinstance(leaf, list):
        return f"[{', '.join(map(format_argument, leaf))}]"
    if isinstance(leaf, tuple):
        inner = ", ".join(map(format_argument, leaf))
        return f"({inner},)" if len(leaf) == 1 else f"({inner})"
    if isinstance(leaf, torch.device):
        return f"device({str(leaf)!r})"
    if isinstance(leaf, Alias):
        return f"alias(inputs[{leaf.input}], {_geometry(leaf.type)})"
    if isinstance(leaf, OutputAlias):
        return f"alias(outputs[{leaf.output}], {_geometry(leaf.type)})"
    return repr(leaf) if not isinstance(leaf, Value) else leaf.name


def _geometry(type_: TensorType) -> str:
    parts = (type_.shape, type_.strides, type_.offset)
    return ", ".join(format_argument(part) for part in parts)


def _lines(graph: Graph, name: str, nodes: list[Node]) -> Iterator[str]:
    parameters = ", ".join(f'{value.name}: "{value.type}"' for value in graph.inputs)
    yield f"def {name}({parameters}):"
    location: Location | None = None
    for node in nodes:
        if node.location is not None and node.location != location:
            location = node.location
            yield "    # " + _user_line(location)
        for subgraph in subgraphs_of(node):
            inner = _lines(subgraph.graph, subgraph.name, subgraph.graph.nodes)
            yield from ("    " + line for line in inner)
        yield "    " + _statement(node)
    for mutation in graph.mutations:
        target, source = graph.inputs[mutation.input], graph.outputs[mutation.output]
        yield f"    {target.name}.copy_({format_argument(source)})"
    returned = graph.outputs[: graph.returned]
    yield f"    return {format_argument(returned)}"
    hidden = graph.outputs[len(returned) :]
    if hidden:
        yield f"    # also out: {format_argument(hidden)}"


def _user_line(location: Location) -> str:
    source = linecache.getline(location.file, location.line).strip()
    where = f"{os.path.basename(location.file)}:{location.line}"
    return f"{where}  {source}".rstrip()


def _statement(node: Node) -> str:
    arguments = [format_argument(a) for a in node.args]
    arguments += [f"{key}={format_argument(a)}" for key, a in node.kwargs.items()]
    call = f"{op_name(node.op)}({', '.join(arguments)})"
    outs = ", ".join(out.name for out in node.outs)
    text = f"{outs} = {call}" if outs else call
    notes = ", ".join(_type(out.type) for out in node.outs)
    if node.token is not None:
        notes += f" random {node.token}"
    return f"{text:<{_COLUMN}}# {notes}" if notes else text


def _type(type_: TensorType | ScalarType) -> str:
    return str(type_)
