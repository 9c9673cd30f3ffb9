"""DistributedDataParallel on two processes: eager's gradients, averaged over both."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = textwrap.dedent(
    """
    import sys
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import jitshape

    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

    def batch(size, rank):
        return torch.randn(size, 4, generator=torch.Generator().manual_seed(10 * size + rank))

    for inside in (True, False):
        jitshape.reset()
        alone, model = made(), made()
        if inside:
            call = DistributedDataParallel(jitshape.compile(model))
        else:
            call = jitshape.compile(DistributedDataParallel(model))
        for size in (3, 5):
            for m in (alone, model):
                m.zero_grad()
            call(batch(size, rank)).square().sum().backward()
            for other in range(2):
                (alone(batch(size, other)).square().sum() / 2).backward()
            for a, b in zip(alone.parameters(), model.parameters()):
                torch.testing.assert_close(a.grad, b.grad)
        assert jitshape.stats()["graphs"] > 0
    dist.barrier()
    dist.destroy_process_group()
    print("equal")
    """
)


def test_gradients_are_averaged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    outcomes = [process.communicate(timeout=240) for process in processes]
    for out, err in outcomes:
        assert out.strip() == "equal", err[-2000:]
