"""What torch's own compiler is told in torch's code and the user's, where it is loaded."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Optimizers have switches round their methods once the compiler is loaded and a step was taken.
PROGRAM = textwrap.dedent(
    """
    import functools
    import torch, torch._dynamo
    from torch.optim import SGD, Adam

    def trainer(make):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = make(model.parameters())
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step

    MAKES = [functools.partial(SGD, lr=0.1), functools.partial(Adam, lr=0.1, foreach=True)]
    xs = [torch.randn(3, 4) for _ in range(3)]
    expected = [[step(x) for x in xs] for step in map(trainer, MAKES)]

    @torch.compiler.disable
    def off(x): return x * 2

    @functools.wraps(off)
    def wrapper(x): return off(x) + 1

    on = torch.compile(lambda x: x * 3, backend="eager")

    import jitshape
    for make, losses in zip(MAKES, expected):
        jitshape.reset()
        step = jitshape.compile(trainer(make))
        for x, loss in zip(xs, losses):
            torch.testing.assert_close(step(x), loss)
        print(jitshape.stats()["graph_breaks"])
    for f in (off, wrapper, on):
        jitshape.reset()
        compiled = jitshape.compile(lambda x: f(x + 1) + 1)
        assert torch.equal(compiled(torch.ones(2)), f(torch.ones(2) + 1) + 1)
        print(*jitshape.stats()["details"]["break_reasons"].items())
    """
)


def test_switches_of_torchs_compiler() -> None:
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    sgd, adam, off, wrapper, on = done.stdout.splitlines()
    assert (sgd, adam) == ("0", "0")
    assert off == wrapper == "('torch_call: off: it is marked torch.compiler.disable', 1)"
    assert "nested torch.compile" in on and on.endswith(", 1)")
