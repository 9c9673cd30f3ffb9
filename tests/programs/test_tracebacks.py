"""Tracebacks of exceptions that were raised and caught while tracing: frames, lines and columns
as eager, also where the exception leaves, goes on at a break, or existed before."""

import contextlib
import inspect
import sys
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

    assert frames_of(jitshape.compile(caught_outside)(3)) == frames_of(caught_outside(3))


def frames_of(error):
    """Of each entry: lines, and of its frame name and variables."""
    entry, found = error.__traceback__, []
    while entry is not None:
        frame = entry.tb_frame
        names = frame.f_code.co_varnames, frame.f_code.co_name
        held = {name: shown(value) for name, value in frame.f_locals.items()}
        found.append((entry.tb_lineno, frame.f_lineno, names, held))
        entry = entry.tb_next
    return found


def shown(value):
    return type(value) if callable(value) or isinstance(value, Exception) else value


def keeps(x):
    later, numbers = 1, [x]
    numbers.append(numbers)

    def closure():
        return numbers, x

    error = ValueError(closure)
    del later
    try:
        raise error
    finally:
        x = 7


def test_frames_hold_their_variables():
    def caught_outside(x):
        try:
            keeps(x)
        except ValueError as error:
            return error

    error = jitshape.compile(caught_outside)(3)
    expected = caught_outside(3)
    numbers = error.__traceback__.tb_next.tb_frame.f_locals["numbers"]
    assert numbers == [3, numbers] and error.args[0]()[0] is numbers
    for each in (error, expected):
        frame = each.__traceback__.tb_next.tb_frame
        frame.f_locals["numbers"].pop()
        assert frame.f_locals["error"] is each
    assert frames_of(error) == frames_of(expected)


def test_one_frame_for_all_entries():
    def program(x):
        try:
            try:
                inner(x)
            except ValueError as error:
                raise error
        except ValueError as error:
            return error

    def alike(error):
        first, second = error.__traceback__, error.__traceback__.tb_next
        return first.tb_frame is second.tb_frame, first.tb_lineno - second.tb_lineno

    assert alike(jitshape.compile(program)(3)) == alike(program(3)) == (True, 2)


def kept_in_its_own_frame(x):
    try:
        inner(x)
    except ValueError as error:
        entry, same = error.__traceback__, error  # noqa: F841
        raise


def test_a_traceback_may_be_kept_in_its_own_frame():
    def program(x):
        try:
            kept_in_its_own_frame(x)
        except ValueError as error:
            return error

    error = jitshape.compile(program)(3)
    assert traceback.format_exception(error) == traceback.format_exception(program(3))
    assert error.__traceback__.tb_next.tb_frame.f_locals["same"] is error


def caller_of(depth=1):
    frame = sys._getframe(depth)
    return frame.f_code.co_name, frame.f_lineno, frame.f_globals is globals()


def asks_for_frames():
    frame = inspect.currentframe()
    try:
        inner(3)
    except ValueError as error:
        entry = error.__traceback__
        found = entry.tb_frame is frame, entry.tb_lineno, entry.tb_frame.f_lineno
    return (
        found,
        frame is sys._getframe(),
        frame.f_code is asks_for_frames.__code__,
        caller_of(),
        caller_of(0),
        (lambda: sys._getframe().f_back is frame)(),
    )


def test_frames_are_asked_for_while_tracing():
    jitshape.reset()
    assert jitshape.compile(asks_for_frames)() == asks_for_frames()
    assert jitshape.stats()["graph_breaks"] == 0


def test_variables_of_frames():
    def inside():
        own = 3  # noqa: F841
        return dict(sys._getframe(1).f_locals), sorted(sys._getframe().f_locals)

    def program(x):
        before = inside()
        x, later = 5, before[1]  # noqa: F841
        return before, inside()

    assert told(jitshape.compile(program)(3)) == told(program(3))


def told(results):
    return [({name: shown(v) for name, v in held.items()}, names) for held, names in results]


def test_frames_outside_and_frames_that_leave_exist():
    def program():
        frame = sys._getframe()
        return frame.f_back.f_code.co_name, frame, caller_of(2)[0]

    name, frame, caller = jitshape.compile(program)()
    assert name == caller == "test_frames_outside_and_frames_that_leave_exist"
    assert frame.f_code.co_name == "program"


def test_exit_gets_the_traceback():
    """A break in the call of `__exit__` hands a real traceback to code of C too."""

    def assertion(case):
        with case.assertRaisesRegex(ValueError, "bad"):
            inner(case)
        return 7

    assert jitshape.compile(assertion)(unittest.TestCase()) == 7
