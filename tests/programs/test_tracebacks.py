"""Tracebacks of exceptions that were raised and caught while tracing: frames, lines and columns
as eager, also where the exception leaves, goes on at a break, or existed before."""

import contextlib
import traceback
import unittest

import pytest

import jitshape

KEPT = KeyError("kept")
SEEN = []


def inner(x):
    raise ValueError("bad", x)


def through(x):
    try:
        inner(x)
    except ValueError:
        raise


def caught(x):
    try:
        inner(x)
    except ValueError as error:
        return error


def caught_again(x):
    try:
        through(x)
    except ValueError as error:
        return error


def raised_twice(x):
    try:
        try:
            inner(x)
        except ValueError as error:
            kept = error
            raise kept  # noqa: B904
    except ValueError as error:
        return error


def with_context(x):
    try:
        try:
            return 1 / (x - x)
        finally:
            inner(x)
    except ValueError as error:
        return error


def of_generator(x):
    def numbers():
        yield x
        yield inner(x)

    try:
        return sum(numbers())
    except ValueError as error:
        return error


def thrown_into_a_generator(x):
    def numbers():
        yield x

    waiting = numbers()
    next(waiting)
    try:
        waiting.throw(ValueError("thrown"))
    except ValueError as error:
        return error


def existing(x):
    try:
        raise KEPT
    except KeyError as error:
        return error


def existing_with_context(x):
    try:
        try:
            inner(x)
        except ValueError:
            raise KEPT  # noqa: B904
    except KeyError as error:
        return error


def replaced(x):
    try:
        inner(x)
    except ValueError as error:
        mine = error
    try:
        raise KeyError("other").with_traceback(mine.__traceback__)
    except KeyError as error:
        return error


def dropped(x):
    try:
        inner(x)
    except ValueError as error:
        return error.with_traceback(None)


def after_a_break(x):
    try:
        inner(x)
    except ValueError as error:
        SEEN.append(id(x))
        return error


def unmatched(x):
    try:
        inner(x)
    except KeyError as error:
        return error
    except TypeError:
        pass


def ended_in_finally(x):
    try:
        inner(x)
    finally:
        x += 1


def raised_in_a_handler(x):
    try:
        inner(x)
    except ValueError as error:
        raise KeyError(str(error)) from error


def left_a_with(x):
    with contextlib.nullcontext():
        inner(x)


PROGRAMS = [
    caught,
    caught_again,
    raised_twice,
    with_context,
    of_generator,
    thrown_into_a_generator,
    existing,
    existing_with_context,
    replaced,
    dropped,
    after_a_break,
]


def forget():
    KEPT.__traceback__ = KEPT.__context__ = None


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_formatted_as_eager(program):
    forget()
    expected = traceback.format_exception(program(3))
    compiled = jitshape.compile(program)
    for _ in range(2):
        forget()
        assert traceback.format_exception(compiled(3)) == expected


def test_entries_of_an_existing_exception_grow_as_in_eager():
    counts = []
    for function in (existing, jitshape.compile(existing)):
        forget()
        counts.append([len(traceback.extract_tb(function(1).__traceback__)) for _ in range(3)])
    assert counts[0] == counts[1] == [1, 2, 3]


def test_read_while_tracing():
    def lines(x):
        try:
            through(x)
        except ValueError as error:
            entry, found = error.__traceback__, []
            while entry is not None:
                found.append(entry.tb_lineno)
                entry = entry.tb_next
            return found

    jitshape.reset()
    assert jitshape.compile(lines)(1) == lines(1)
    assert jitshape.stats()["graph_breaks"] == 0


@pytest.mark.parametrize("program", [unmatched, ended_in_finally, raised_in_a_handler, left_a_with])
def test_frames_stand_where_they_ended(program):
    """Where a frame ended is another line than the one that raised."""

    def caught_outside(x):
        try:
            program(x)
        except Exception as error:
            return error

    def lines(error):
        entry, found = error.__traceback__.tb_next, []
        while entry is not None:
            frame = entry.tb_frame
            found.append((entry.tb_lineno, frame.f_lineno, frame.f_code.co_varnames))
            entry = entry.tb_next
        return found

    assert lines(jitshape.compile(caught_outside)(3)) == lines(caught_outside(3))


def test_exit_gets_the_traceback():
    """A break in the call of `__exit__` hands a real traceback to code of C too."""

    def assertion(case):
        with case.assertRaisesRegex(ValueError, "bad"):
            inner(case)
        return 7

    assert jitshape.compile(assertion)(unittest.TestCase()) == 7
