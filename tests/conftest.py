"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# what an earlier run of the tests learned must not change this one
os.environ["JITSHAPE_PROFILE"] = os.environ["JITSHAPE_CACHE"] = "0"
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected texts in tests/golden"
    )
    parser.addoption(
        "--all-mutations", action="store_true", help="make every change of tests/programs/fuzz.py"
    )
    parser.addoption(
        "--memory-programs", type=int, default=25, help="how many random programs of writes to run"
    )
    parser.addoption(
        "--all-kernels", action="store_true", help="look at the GPU code of every op and program"
    )
    parser.addoption(
        "--workloads", help="a file of workloads, which tests/programs/test_replay runs"
    )
    parser.addoption(
        "--store-faults", type=int, default=14, help="how many damages of the store to do"
    )


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Every test draws the same numbers each time (torch only where a test loaded it)."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def further_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --all-mutations every program that a test gave to `check` meets the fuzzer."""
    yield
    compare = sys.modules.get("tests.programs.compare")
    checked = [] if compare is None else compare.checked[:]
    if checked:
        compare.checked.clear()
    if checked and request.config.getoption("--all-mutations"):
        from tests.programs.fuzz import must_find_nothing

        for compiled, function, args in checked:
            must_find_nothing(compiled, function, args)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares `text` with tests/golden/<name>.txt, or writes it there."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest with --update-golden"
        assert text == path.read_text(), f"{path.name} differs: --update-golden if it should"

    return check
