"""The public functions: what is accepted, what comes back, what is refused."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import jitshape
from jitshape import errors


def double(x, *, by=2):
    """Twice x."""
    return x * by


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return torch.relu(self.fc(x))


def test_function_keeps_its_face():
    compiled = jitshape.compile(double)
    assert compiled.__wrapped__ is double
    assert compiled.__name__ == "double" and compiled.__doc__ == "Twice x."
    assert inspect.signature(compiled) == inspect.signature(double)
    assert compiled(torch.ones(2), by=3).tolist() == [3.0, 3.0]
    assert jitshape.compile(compiled) is compiled


def test_decorators():
    @jitshape.compile
    def plain(x):
        return x + 1

    @jitshape.compile(dynamic=True, fullgraph=True)
    def configured(x):
        return x + 2

    assert plain(torch.zeros(1)).item() == 1 and configured(torch.zeros(1)).item() == 2


def test_method():
    class Holder:
        scale = 3.0

        @jitshape.compile
        def run(self, x):
            return x * self.scale

    holder = Holder()
    assert holder.run(torch.ones(1)).item() == 3
    Holder.scale = 4.0
    assert holder.run(torch.ones(1)).item() == 4
    assert jitshape.compile(holder.run)(torch.ones(1)).item() == 4


def test_wrong_arguments_are_pythons_own_errors():
    compiled = jitshape.compile(double)
    with pytest.raises(TypeError) as mine:
        compiled()
    with pytest.raises(TypeError) as pythons:
        double()
    assert str(mine.value) == str(pythons.value)


def test_module_is_a_module_with_the_same_state():
    module = Small()
    compiled = jitshape.compile(module)
    assert isinstance(compiled, Small) and isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert [p.data_ptr() for p in compiled.parameters()] == [
        p.data_ptr() for p in module.parameters()
    ]
    compiled.eval()
    assert not module.training and not module.fc.training
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), module(x))
    compiled.load_state_dict({k: torch.ones_like(v) for k, v in module.state_dict().items()})
    torch.testing.assert_close(compiled(x), torch.relu(x.sum(-1, keepdim=True) + 1).expand(2, 4))


def test_module_hooks_run():
    module = Small()
    compiled = jitshape.compile(module)
    calls = []
    x = torch.randn(2, 3)
    compiled(x)
    handle = compiled.register_forward_hook(lambda m, args, out: calls.append(1) or out * 2)
    torch.testing.assert_close(compiled(x), torch.relu(module.fc(x)) * 2)
    handle.remove()
    torch.testing.assert_close(compiled(x), torch.relu(module.fc(x)))
    assert calls == [1]


def test_module_deepcopy_and_pickle():
    compiled = jitshape.compile(Small())
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(other(x), compiled(x))
        assert other.fc.weight is not compiled.fc.weight
        assert type(other) is type(compiled)


@pytest.mark.parametrize("thing", [3, "f", None.__class__(), [double]])
def test_not_callable(thing):
    if thing is None:
        assert callable(jitshape.compile(thing))
        return
    with pytest.raises(errors.NotCallable, match="cannot be called"):
        jitshape.compile(thing)
    with pytest.raises(errors.NotCallable, match=r"explain got .*, which cannot be called"):
        jitshape.explain(thing)


def test_unsupported_tensors_are_refused():
    compiled = jitshape.compile(lambda x: x * 2)
    with pytest.raises(errors.UnsupportedTensor, match=r"the tensor x(.|\n)*sparse"):
        compiled(torch.eye(3).to_sparse())
    with pytest.raises(errors.UnsupportedTensor, match="meta"):
        compiled(torch.empty(3, device="meta"))


def test_disable():
    @jitshape.disable
    def outside(x):
        return x + torch.tensor(float(jitshape.is_compiling()))

    def f(x):
        return outside(x * 2) * 3

    jitshape.reset()
    compiled = jitshape.compile(f)
    assert compiled(torch.ones(1)).item() == 6
    assert jitshape.stats()["graph_breaks"] == 1
    assert jitshape.compile(double, disable=True) is double


def test_is_compiling():
    def f(x):
        return x + 1 if jitshape.is_compiling() else x

    assert f(torch.zeros(1)).item() == 0
    assert jitshape.compile(f)(torch.zeros(1)).item() == 1


def test_stances():
    jitshape.reset()
    compiled = jitshape.compile(double, dynamic=False)
    with jitshape.set_stance("force_eager"):
        compiled(torch.ones(2))
    assert jitshape.stats()["compiles"] == 0
    compiled(torch.ones(2))
    with jitshape.set_stance("fail_on_recompile"):
        compiled(torch.ones(2))
        with pytest.raises(errors.RecompileRefused, match="double would be compiled again"):
            compiled(torch.ones(3))
    with jitshape.set_stance("eager_on_recompile"):
        assert compiled(torch.ones(4)).tolist() == [2] * 4
    assert jitshape.stats()["compiles"] == 1
    with pytest.raises(errors.UnknownOption):
        jitshape.set_stance("lazy")


def test_force_eager_leaves_entries_aside():
    def f(x):
        return x + 1 if jitshape.is_compiling() else x

    jitshape.reset()
    compiled, zero = jitshape.compile(f), torch.zeros(())
    assert compiled(zero).item() == 1
    with jitshape.set_stance("force_eager"):
        assert compiled(zero).item() == 0
        later = jitshape.compile(lambda x: f(x) * 2)
        assert later(zero + 1).item() == 2
        with jitshape.set_stance("default"):
            assert compiled(zero).item() == 1
        assert compiled(zero).item() == 0
    assert compiled(zero).item() == 1 and later(zero + 1).item() == 4
    assert jitshape.stats()["fallbacks"] == 0


def test_disabled_by_the_environment(monkeypatch):
    monkeypatch.setenv("JITSHAPE_DISABLE", "1")
    assert jitshape.compile(double) is double
    monkeypatch.setenv("JITSHAPE_DISABLE", "0")
    assert jitshape.compile(double) is not double


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "fastest"}, "mode='fastest' is not known(.|\n)*'default'"),
        ({"backend": "tpu"}, "backend='tpu' is not known(.|\n)*'auto', 'cpu'"),
        ({"options": {"epilogue": 1}}, "unknown option 'epilogue'"),
        ({"dynamic": "yes"}, "dynamic='yes' is not known"),
        ({"fullgraph": 1}, "fullgraph=1 is not known"),
        ({"name": 3}, "name=3"),
    ],
)
def test_unknown_settings(arguments, message):
    with pytest.raises(errors.UnknownOption, match=message):
        jitshape.compile(double, **arguments)


def test_stats_are_plain_and_reset():
    import json

    compiled = jitshape.compile(double)
    compiled(torch.ones(3))
    stats = jitshape.stats()
    assert stats == json.loads(json.dumps(stats))
    jitshape.reset()
    assert jitshape.stats()["compiles"] == 0 and jitshape.history() == ()
    compiled(torch.ones(3))
    assert jitshape.stats()["compiles"] == 1


def test_explain():
    explanation = jitshape.explain(double)(torch.ones(3))
    assert explanation.result.tolist() == [2] * 3
    assert explanation.graph_break_count == 0
    assert any("x is Tensor float32[3] on cpu" in guard for guard in explanation.guards)
    assert "def forward(" in str(explanation) and "mul" in explanation.graphs[0]


def test_marks():
    jitshape.reset()
    compiled = jitshape.compile(double)
    x = torch.ones(3, 4)
    jitshape.mark_dynamic(x, 0)
    compiled(x), compiled(torch.ones(5, 4)), compiled(torch.ones(6, 4))
    assert jitshape.stats()["compiles"] == 1
    with pytest.raises(IndexError):
        jitshape.mark_dynamic(x, 2)


def test_internal_error_names_stage_and_is_suppressed_on_request(monkeypatch, capsys):
    from jitshape import programs

    def fails(graph, **kwargs):
        node = graph.nodes[0]
        raise KeyError(node.op)

    monkeypatch.setattr(programs, "compile_graph", fails)
    with pytest.raises(errors.InternalError, match="stage 'generate'") as caught:
        jitshape.compile(double)(torch.ones(2))
    assert "--> " in str(caught.value) and "mul(x, 2)" in str(caught.value)
    jitshape.reset()
    compiled = jitshape.compile(double, options={"suppress_errors": True})
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert jitshape.stats()["fallbacks"] == 2
    assert capsys.readouterr().err.count("runs eagerly") == 1


def test_names_in_records():
    jitshape.reset()
    jitshape.compile(double, name="twice")(torch.ones(2))
    jitshape.compile(double)(torch.ones(2))
    jitshape.compile(Small())(torch.ones(2, 3))
    assert [record.function for record in jitshape.history()] == ["twice", "double", "Small"]
    line = Small.forward.__code__.co_firstlineno
    assert jitshape.history()[-1].where == f"{__file__}:{line}"


@pytest.mark.parametrize(
    "backend, text",
    [
        (lambda graph, inputs: None, "returned NoneType"),
        (lambda graph, inputs: graph, "returned Graph"),
        (lambda graph, inputs: lambda *given: None, "gave NoneType"),
        (lambda graph, inputs: lambda *given: given[:1], "gave tuple of 1"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_what_a_back_end_must_give(backend, text, grad):
    compiled = jitshape.compile(lambda x: (x * 2, x + 1), backend=backend)
    with pytest.raises(errors.BadBackend, match=text):
        compiled(torch.ones(3, requires_grad=grad))


def test_a_back_end_may_run_the_graph_by_evaluate():
    from jitshape.ir.evaluate import evaluate

    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return lambda *given: evaluate(graph, given)

    compiled = jitshape.compile(lambda x, n: (x * n, x + 1), backend=backend)
    for n in (2, 3, 4):
        assert [t.tolist() for t in compiled(torch.ones(n), n)] == [[float(n)] * n, [2.0] * n]
    assert len(seen) == 2


def test_arguments_of_other_types_are_named():
    with pytest.raises(errors.UnknownOption, match="must be a dict"):
        jitshape.compile(double, options=3)
    with pytest.raises(errors.UnknownOption, match="takes a str"):
        jitshape.set_logs(["dynamic"])
    with pytest.raises(errors.BadMark, match="only tensors"):
        jitshape.mark_dynamic(3, 0)
    with pytest.raises(errors.BadMark, match="only tensors"):
        jitshape.mark_static(3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(errors.UnsupportedTensor, match="nested"):
        jitshape.compile(double)(nested)


def test_minus_all_shows_nothing(capfd):
    jitshape.set_logs("all,-all")
    jitshape.compile(double)(torch.ones(2))
    jitshape.set_logs("")
    assert capfd.readouterr().err == ""


def test_graphs_found_and_not_found_are_counted_and_told(capfd):
    jitshape.reset()
    jitshape.set_logs("cache")
    for _ in range(2):
        jitshape.compile(double)(torch.ones(2))
    jitshape.set_logs("")
    assert jitshape.stats()["cache"] == {"graph": {"hit": 1, "miss": 1}}
    told = capfd.readouterr().err
    assert "graph miss: double" in told and "graph hit: double" in told
