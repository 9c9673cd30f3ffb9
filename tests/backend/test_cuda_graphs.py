"""Recorded programs, by a recorder on the CPU that does what torch's does on a GPU: recording
computes nothing, replays write to the same memory."""

from __future__ import annotations

import pytest
import torch

import jitshape
from jitshape.backend import cuda_graphs
from jitshape.backend.cuda_graphs import MOST_RECORDINGS, refusal
from tests.backend.graphs import build, call, new_env, tensor


class FakeRecorder:
    """`kept`: tensors that recording must leave as they are, though the program writes to them."""

    def __init__(self):
        self.capturing, self.kept, self.error = False, [], None

    def can_record(self):
        return not self.capturing

    def stream(self):
        return 0

    def record(self, run):
        if self.error is not None:
            raise RuntimeError(self.error)
        saved = [t.clone() for t in self.kept]
        results = run()
        for t, old in zip(self.kept, saved):
            t.data.copy_(old)
        for result in results:
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                result.fill_(torch.nan)

        def replay():
            for old, new in zip(results, run()):
                if isinstance(old, torch.Tensor):
                    old.copy_(new)

        return replay, results


@pytest.fixture
def recorder(monkeypatch):
    found = FakeRecorder()
    monkeypatch.setattr(cuda_graphs, "RECORDER", found)
    monkeypatch.setattr(cuda_graphs, "KIND", "cpu")
    jitshape.reset()
    return found


def compiled(function, **more):
    options = {"cache": False}
    return jitshape.compile(
        function, dynamic=True, mode="reduce-overhead", fullgraph=True, options=options, **more
    )


def told():
    return jitshape.stats()["details"].get("cuda_graphs", {})


def test_the_second_call_is_recorded_and_later_ones_replay(recorder):
    f = compiled(lambda x, y: (x * 2 + y, x.sum()))
    results = []
    for step in range(4):
        x, y = torch.randn(5, 3), torch.randn(3)
        results.append((x * 2 + y, x.sum(), f(x, y)))
        assert told().get("replayed", 0) == step
    for a, b, (c, d) in results:  # results of earlier calls stay what they were
        torch.testing.assert_close((a, b), (c, d))
    assert told() == {"first": 1, "recorded": told()["recorded"], "replayed": 3}


def test_sizes_have_recordings_of_their_own_up_to_a_number(recorder):
    f = compiled(lambda x: x.exp())
    for _ in range(3):
        for n in range(2, MOST_RECORDINGS + 4):
            x = torch.randn(n)
            torch.testing.assert_close(f(x), x.exp())
    assert told()["first"] == MOST_RECORDINGS and told()["replayed"] == 2 * MOST_RECORDINGS
    assert told()["too many sizes"] == 6
    assert jitshape.stats()["compiles"] == 1


def test_parameters_are_read_in_place_and_may_change(recorder):
    model = torch.nn.Linear(4, 3)
    f = compiled(model)
    x = torch.randn(2, 4)
    for _ in range(4):
        with torch.no_grad():
            torch.testing.assert_close(f(x), model(x))
            model.weight.add_(1)
    assert told()["recorded"] == 1 and told()["replayed"] == 3


def test_an_input_that_moves_is_copied_from_then_on(recorder):
    f = compiled(lambda x, y: x + y)
    kept, x = torch.randn(4), torch.randn(4)
    for y in [kept, kept, torch.randn(4), torch.randn(4), kept]:
        torch.testing.assert_close(f(x, y), x + y)
    assert told()["recorded"] == 2  # in place; then copied


def test_written_inputs_and_their_versions(recorder):
    def step(state, x):
        state.mul_(2)
        state.add_(x)
        return state.sum()

    f = compiled(step)
    for fixed in (True, False):
        ours = torch.zeros(3)
        recorder.kept = [ours]
        for _ in range(4):
            ours = ours if fixed else ours.clone()
            theirs, x = ours.clone(), torch.randn(3)
            before, start = ours._version, theirs._version
            total = step(theirs, x)
            torch.testing.assert_close(f(ours, x), total)
            torch.testing.assert_close(ours, theirs)
            assert ours._version - before == theirs._version - start
    assert told()["replayed"] >= 6


def test_forward_and_backward(recorder):
    def loss(x, w):
        return torch.nn.functional.gelu(x @ w).square().mean()

    f = compiled(loss)
    w = torch.randn(4, 5, requires_grad=True)
    for _ in range(4):
        x = torch.randn(3, 4, requires_grad=True)
        z = x.detach().clone().requires_grad_()
        f(x, w).backward()
        ours, w.grad = w.grad, None
        loss(z, w).backward()
        torch.testing.assert_close((x.grad, ours), (z.grad, w.grad))
        w.grad = None
    assert told()["replayed"] == 6


def test_expanded_inputs_passed_outputs_and_numbers(recorder):
    f = compiled(lambda x, n: (x, x.sum() * n, x.t().contiguous() + n))
    for n in (2, 2, 3, 2):
        x = torch.randn(3, 1).expand(3, 4)
        same, total, turned = f(x, n)
        assert same is x
        torch.testing.assert_close((total, turned), (x.sum() * n, x.t() + n))
    assert told()["replayed"] >= 2


def test_random_numbers_go_on(recorder):
    f = compiled(lambda x: torch.rand_like(x))
    x = torch.zeros(50)
    drawn = [f(x) for _ in range(4)]
    assert len({tuple(t.tolist()) for t in drawn}) == 4


def test_nothing_is_recorded_inside_a_capture(recorder):
    f = compiled(lambda x: x + 1)
    recorder.capturing = True
    for _ in range(3):
        f(torch.zeros(3))
    assert told() == {"not recorded": 3}


def test_what_cannot_be_recorded_runs_on_with_a_warning(recorder):
    f = compiled(lambda x: x + 1)
    f(torch.zeros(3))
    recorder.error = "operation not permitted when stream is capturing\nmore"
    with pytest.warns(UserWarning, match="no CUDA graph is used: operation not permitted"):
        assert f(torch.zeros(3)).tolist() == [1, 1, 1]
    assert f(torch.ones(3)).tolist() == [2, 2, 2]
    assert told() == {"first": 1, "not recorded": 2}


# ---- reasons


def reason(body, *types, kind="cpu"):
    return refusal(build(new_env(), types, body), kind)


def test_reasons():
    x = tensor(3, 4)
    assert reason(lambda g, x: call(g, "exp", x), x) is None
    assert (
        reason(lambda g, x: call(g, "exp", x), x, kind="cuda")
        == "it is not on one cuda device: cpu"
    )
    assert "view of an input" in (reason(lambda g, x: call(g, "t", x), x) or "")
    assert "depends on data" in (reason(lambda g, x: call(g, "nonzero", x), x) or "")


def test_on_the_cpu_the_reason_is_told():
    jitshape.reset()
    f = compiled(lambda x: x.sin())
    x = torch.randn(3)
    torch.testing.assert_close(f(x), x.sin())
    assert told() == {"it is not on one cuda device: cpu": 1}
