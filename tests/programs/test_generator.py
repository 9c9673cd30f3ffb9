"""The state of the default generator, read and set by the program: in order with what draws."""

from __future__ import annotations

import pytest
import torch
from torch.utils._mode_utils import no_dispatch

import jitshape
from tests.programs.compare import assert_same, check


def seeded(x, seed=3):
    torch.manual_seed(seed)
    return x + torch.rand_like(x)


def kept(x):
    state = torch.get_rng_state()
    first = torch.rand_like(x)
    torch.set_rng_state(state)
    return first, torch.rand_like(x), state


def forked(x):
    before = torch.rand(2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        inside = torch.nn.functional.dropout(x, 0.5)
    return before, inside, torch.rand(2)


def method(x):
    torch.default_generator.manual_seed(9) if x is None else torch.random.manual_seed(9)
    return x * torch.rand(1), torch.manual_seed(8) is torch.default_generator, torch.rand(1)


def overwritten(x):
    y = x * 1
    torch.manual_seed(5)
    y.mul_(torch.rand_like(x))
    torch.manual_seed(5)
    return y / torch.rand_like(x)


def unused(x):
    torch.get_rng_state()
    torch.rand(4)
    torch.manual_seed(2)
    return x


def blind(x):
    with no_dispatch(), torch._C._DisableFuncTorch():
        state = torch.get_rng_state()
    guard = torch._C._DisableTorchDispatch()
    drawn = torch.rand_like(x)
    del guard
    torch.set_rng_state(state)
    return drawn, x + torch.rand_like(x)


PROGRAMS = (seeded, kept, forked, method, overwritten, unused, blind)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("gradients", [False, True])
def test_numbers_and_state_are_eagers(program, gradients) -> None:
    jitshape.reset()
    compiled = jitshape.compile(program, dynamic=True, fullgraph=True)
    for rows in (3, 5, 8):
        x, found = torch.randn(rows, 4), []
        for function in (program, compiled):
            torch.manual_seed(0)
            mine = x.clone().requires_grad_(gradients)
            found.append((function(mine), mine.detach(), torch.get_rng_state()))
        assert_same(*found)
    stats = jitshape.stats()
    assert stats["compiles"] == 1 and stats["graph_breaks"] == 0


def test_a_seed_that_changes_is_an_argument_of_the_graph() -> None:
    check(seeded, *((torch.zeros(4), seed) for seed in (1, 2, -3, 2**61)), compiles=2)


def test_a_seed_beyond_what_guards_compute_with_is_a_constant() -> None:
    check(seeded, *((torch.zeros(4), seed) for seed in (1, 2, 2**62, 2**62)), compiles=3)


@pytest.mark.parametrize("seed", [2.0, 2**64, True])
def test_seeds_of_other_kinds_run_natively(seed) -> None:
    jitshape.reset()
    outcomes = []
    for function in (seeded, jitshape.compile(seeded)):
        try:
            outcomes.append(function(torch.zeros(4), seed))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert_same(*outcomes)


@pytest.mark.parametrize("state", [torch.zeros(8, dtype=torch.uint8), torch.zeros(5056)])
def test_a_wrong_state_is_eagers_error(state) -> None:
    def f(x, state):
        x.add_(1)
        torch.set_rng_state(state)

    for function in (f, jitshape.compile(f)):
        x = torch.zeros(3)
        with pytest.raises((TypeError, RuntimeError), match=r"state|ByteTensor"):
            function(x, state)
        assert x.tolist() == [1, 1, 1]


def test_a_guard_lives_on_behind_a_break() -> None:
    def f(x):
        guard = no_dispatch()
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
        print(end="")
        inside = excluded(torch._C.DispatchKey.Python)
        del guard
        return x + inside, excluded(torch._C.DispatchKey.Python)

    expected, got = f(torch.zeros(2)), jitshape.compile(f)(torch.zeros(2))
    assert_same(expected, got)


def test_a_checkpointed_function_that_seeds_runs_natively() -> None:
    from torch.utils.checkpoint import checkpoint

    def f(x):
        return checkpoint(seeded, x, use_reentrant=False)

    jitshape.reset()
    compiled = jitshape.compile(f)
    results = []
    for function in (f, compiled):
        torch.manual_seed(0)
        x = torch.ones(4, requires_grad=True)
        y = function(x)
        y.sum().backward()
        results.append((y, x.grad, torch.get_rng_state()))
    assert_same(*results)


def test_the_number_of_devices_is_asked_of_the_driver(monkeypatch):
    """As by a torch for GPUs, which asks in code that no trace can follow."""
    count, asked = [0], []

    def from_driver():
        asked.append(True)
        return count[0]

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", from_driver)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: count[0] == 7)
    jitshape.reset()
    compiled = jitshape.compile(lambda x: x * (1 + torch.cuda.device_count()), fullgraph=True)
    for number in (0, 2, 0):
        count[0] = number
        assert compiled(torch.ones(1)).item() == 1 + number
    assert jitshape.stats()["compiles"] == 2
