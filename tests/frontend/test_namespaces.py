"""Globals and builtins: read once, and written by what follows the trace."""

import sys

from tests.frontend.tracing import run_traced, traced

TOTAL = 1


def test_globals_are_written_after_the_trace():
    def read():
        return TOTAL

    def f(x):
        global TOTAL
        TOTAL += x
        return TOTAL, read()

    assert traced(f, [4])[1].kind == "return"
    assert TOTAL == 1
    assert run_traced(f, [4]) == (5, 5)
    assert TOTAL == 5


def test_globals_are_deleted_and_stored_anew_after_the_trace():
    def f(x):
        global TOTAL, NEW_NAME
        NEW_NAME = x
        del TOTAL
        try:
            found = TOTAL
        except NameError as error:
            found = str(error)
        TOTAL = x + 1
        del NEW_NAME
        return found, TOTAL, "NEW_NAME" in globals(), globals()["TOTAL"]

    before = TOTAL
    assert traced(f, [4])[1].kind == "return" and TOTAL == before
    assert run_traced(f, [4]) == ("name 'TOTAL' is not defined", 5, False, 5)
    assert TOTAL == 5 and "NEW_NAME" not in globals()


def test_a_module_and_its_globals_are_one_namespace():
    module = sys.modules[__name__]

    def f(x):
        global TOTAL
        TOTAL = x
        first = module.TOTAL
        module.TOTAL = x + 1
        globals()["TOTAL"] += 1
        return first, TOTAL, vars(module)["TOTAL"]

    assert run_traced(f, [4]) == (4, 6, 6)
    assert TOTAL == 6


def test_a_builtin_is_shadowed_by_a_global():
    def f(x):
        global len
        first = len(x)
        globals()["len"] = lambda x: 70
        second = len(x)
        del len
        return first, second, len(x)  # noqa: F821

    assert run_traced(f, [[1, 2]]) == (2, 70, 2)
    assert "len" not in globals()
