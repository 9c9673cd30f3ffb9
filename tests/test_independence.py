"""jitshape neither names nor causes an import of torch's own compiler front and back ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
)

# Records the modules that eager itself loads, then those that compiling adds.
PROGRAM = textwrap.dedent(
    """
    import sys, torch
    import torch.nn.functional as F
    from torch import nn

    FORBIDDEN = {forbidden!r}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.b = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        def forward(self, x, y):
            h = F.gelu(self.n(self.a(x)))
            h = F.dropout(h, 0.0, self.training) * torch.tensor([1.0, 2.0] * 8)
            s = F.scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True)[0]
            return F.cross_entropy(self.b(s), y)

    def step(f, n):
        loss = f(torch.randn(n, 8), torch.randint(8, (n,)))
        loss.backward()

    model = Block()
    step(model, 4)
    before = {{m for m in sys.modules if m.startswith(FORBIDDEN)}}
    import jitshape
    compiled = jitshape.compile(model)
    step(compiled, 4); step(compiled, 6); step(compiled, 9)
    stats = jitshape.stats()
    assert stats["compiles"] and not stats["fallbacks"], stats
    added = {{m for m in sys.modules if m.startswith(FORBIDDEN)}} - before
    print("ADDED", sorted(added))
    """
)


def test_no_forbidden_import_is_caused():
    code = PROGRAM.format(forbidden=FORBIDDEN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("ADDED []"), done.stdout


def test_no_forbidden_name_is_written():
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "jitshape").rglob("*.py"))
        if "interop" not in path.parts
        for name in (*FORBIDDEN, "torch._C._dynamo")
        if name in path.read_text()
    ]
    assert found == []


def test_importing_jitshape_loads_no_torch():
    code = "import sys, jitshape; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr
