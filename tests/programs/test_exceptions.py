"""Exceptions of programs: type, message, chain and the lines of the user's, as eager."""

import contextlib
import sys

import pytest
import torch

import jitshape
from tests.programs.pieces import LOG, check_pieces, inputs, note


def of_torch(x):
    y = x * 2
    return y @ torch.ones(3, 100)


def of_shape(x):
    return x.view(-1, 1000)


def raised(x):
    y = x * 2
    LOG.append("before")
    if y.dim() == 2:
        raise ValueError(f"rank {y.dim()}")
    return y


def raised_after_a_break(x):
    y = x * 2
    note(y)
    raise KeyError("after", y.dim())


def deep(x):
    def inner(y):
        note("inner")
        return y.no_such_attribute

    def middle(y):
        return inner(y + 1) + 1

    return middle(x * 2)


def chained(x):
    try:
        note("try")
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("while handling") from error
    return x


def context_of_a_handler(x):
    try:
        raise ValueError("first")
    except ValueError:
        note("handler")
        raise TypeError("second")  # noqa: B904


def caught(x):
    try:
        x = x @ torch.ones(3, 100)
    except RuntimeError as error:
        return x * len(str(error))
    return x


def caught_in_a_loop(x):
    for i in range(4):
        try:
            if i % 2:
                raise ValueError(i)
            x = x + 1
        except ValueError as error:
            note(error.args[0])
            x = x * 2
        finally:
            LOG.append(i)
    return x


def asserted(x):
    y = x + 1
    if y.dim() != 3:
        raise AssertionError(f"got {y.dim()}")
    return y


def swallowed_by_a_generator(x):
    def numbers():
        try:
            yield x
            yield x + 1
        finally:
            note("closed")

    for y in numbers():
        return y * 2


class Custom(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def custom(x):
    try:
        note("custom")
        raise Custom(3)
    except Custom as error:
        return x * error.code


def stop_iteration(x):
    values = iter([x])
    note(next(values))
    return next(values)


PROGRAMS = [
    of_torch,
    of_shape,
    raised,
    raised_after_a_break,
    deep,
    chained,
    context_of_a_handler,
    caught,
    caught_in_a_loop,
    asserted,
    swallowed_by_a_generator,
    custom,
    stop_iteration,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_exceptions(program):
    check_pieces(program, *inputs([(3, 4), (5, 4)]), breaks=0)


def test_chains_are_those_of_eager():
    for program in (chained, context_of_a_handler):
        jitshape.reset()
        found = []
        for call in (program, jitshape.compile(program)):
            with pytest.raises((RuntimeError, TypeError)) as error:
                call(torch.ones(2))
            cause, context = error.value.__cause__, error.value.__context__
            found.append((repr(error.value), repr(cause), repr(context)))
        assert found[0] == found[1]


def test_a_call_that_raises_is_traced_once():
    jitshape.reset()
    compiled = jitshape.compile(raised)
    for _ in range(5):
        with pytest.raises(ValueError, match="rank 2"):
            compiled(torch.ones(2, 2))
    frames = jitshape.stats()["frames"]
    assert frames["native"] == {"raises": 1}
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


class Hidden:
    def __init__(self):
        self.visible = 1

    def __getattr__(self, name):
        raise AttributeError(name)


def asked(x):
    found = []
    for owner in (Hidden(), x, asked):
        try:
            owner.nothing  # noqa: B018
        except AttributeError as error:
            found.append((error, error.name, type(error.obj)))
    try:
        no_such_name  # noqa: B018
    except NameError as error:
        found.append((error, error.name))
    return found


def members(x):
    made = []
    for cls, args in ((StopIteration, (3,)), (SystemExit, (1, 2)), (ImportError, ("text",))):
        try:
            raise cls(*args)
        except BaseException as error:
            made.append(error)
    return made


def test_what_attribute_and_name_errors_tell_leaves_with_them():
    for function in (asked, jitshape.compile(asked)):
        found = function(3)
        shown = [(str(e), e.name, *more) for e, *more in found]
        assert [row[1] for row in shown] == ["nothing"] * 3 + ["no_such_name"]
        assert [type(e.obj) for e, *_ in found[:3]] == [Hidden, int, type(asked)]


def test_members_that_constructors_set_leave_with_the_exception():
    stop, left, failed = jitshape.compile(members)(1)
    assert stop.value == 3 and left.code == (1, 2) and failed.msg == "text"


def test_a_cycle_of_contexts_ends():
    def cycle(x):
        a, b, c = ValueError("a"), ValueError("b"), ValueError("c")
        a.__context__, b.__context__ = b, a
        try:
            raise a
        except ValueError:
            try:
                raise c
            except ValueError as error:
                return error, error.__context__ is a, a.__context__ is b, b.__context__ is a

    assert jitshape.compile(cycle)(1)[1:] == cycle(1)[1:]


def inside_a_handler(x):
    found = [sys.exc_info()[1], sys.exception()]
    try:
        raise KeyError(x)
    except KeyError as error:
        return error, found, sys.exc_info()[2] is not None, sys.exception() is error


def contexts(function):
    plain, found, *more = function(1)
    try:
        raise ValueError("of the caller")
    except ValueError as handled:
        error, seen, *others = function(2)
        return (
            plain.__context__,
            found,
            more,
            error.__context__ is handled,
            [each is handled for each in seen],
            others,
        )


def test_the_exception_that_the_caller_handles():
    compiled = jitshape.compile(inside_a_handler)
    for _ in range(2):
        assert contexts(compiled) == contexts(inside_a_handler)


def test_contexts_made_by_an_exit_stack():
    def nested(inner, outer):
        try:
            raise inner
        finally:
            raise outer

    def program(x):
        made = [Exception(i) for i in range(5)]
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(nested, made[3], made[4])
                stack.callback(nested, made[1], made[2])
                raise made[0]
        except Exception as error:
            chain = []
            while error is not None:
                chain.append(str(error))
                error = error.__context__
            return chain

    assert jitshape.compile(program)(1) == program(1) == ["4", "3", "2", "1", "0"]


def what_came_before(error):
    """What an exception says came before it."""
    found = []
    while error is not None:
        found.append(error.args[0])
        error = error.__context__
    return found


def raised_given(errors):
    try:
        raise errors[0]
    except KeyError:
        pass
    return what_came_before(errors[0])


def raised_while_another_is(errors):
    try:
        try:
            raise errors[0]
        finally:
            raise errors[1]
    except KeyError as error:
        return what_came_before(error)


def raised_twice(errors):
    try:
        raise errors[0]
    except KeyError:
        try:
            raise errors[1]
        except KeyError:
            pass
    try:
        raise errors[1]
    except KeyError as error:
        return what_came_before(error)


def made_and_raised(errors):
    note("before")
    try:
        raise KeyError("made")
    except KeyError as error:
        made = error
    return what_came_before(made)


def raised_again(errors):
    """The caller handles it already, or handles one that it is a context of."""
    try:
        raise errors[2]
    except KeyError as error:
        return what_came_before(error)


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize(
    "program",
    [raised_given, raised_while_another_is, raised_twice, made_and_raised, raised_again],
    ids=lambda f: f.__name__,
)
def test_what_the_caller_handles_is_a_context(program, handled):
    def outcome(call):
        errors = [KeyError("first"), KeyError("second"), KeyError("outer"), KeyError("outermost")]
        if not handled:
            return call(errors)
        try:
            try:
                raise errors[2]
            finally:
                raise errors[3]
        except KeyError:
            return call(errors), *map(what_came_before, errors)

    compiled = jitshape.compile(program)
    expected = outcome(program)
    for _ in range(2):
        assert outcome(compiled) == expected
