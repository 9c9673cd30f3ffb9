"""Which way of a branch only raises."""

from __future__ import annotations

import dis
from types import CodeType

import pytest

from jitshape.ir.branches import raising_truth

CASES = {
    "if n == 1:\n        raise ValueError(f'{n} is too few')\n    return n": True,
    "if not n:\n        raise ValueError\n    return n": False,
    "assert n > 2, 'more'": False,
    "if n:\n        return 1\n    raise KeyError(n)": False,
    "if n:\n        return 1\n    return 2": None,
    "if n:\n        raise KeyError\n    raise ValueError": None,
    "if n:\n        m = n\n        raise KeyError(m)\n    return 2": None,
}


@pytest.mark.parametrize("body", CASES)
def test_the_way_that_raises(body: str) -> None:
    scope: dict = {}
    exec(f"def f(n):\n    {body}", scope)
    code: CodeType = scope["f"].__code__
    jumps = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("POP_JUMP")]
    assert raising_truth(code, jumps[0]) is CASES[body]
    assert raising_truth(code, 0) is None
