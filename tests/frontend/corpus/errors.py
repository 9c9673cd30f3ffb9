# ruff: noqa
"""Exceptions: handlers, finally, chaining, re-raising."""

import itertools
import types

from tests.frontend.corpus.basics import CASES, cases


class Custom(ValueError):
    def __init__(self, code, text="custom"):
        super().__init__(text)
        self.code = code


@cases((0,), (1,), (2,), (3,))
def p_handlers(n):
    log = []
    try:
        try:
            if n == 0:
                log.append([][1])
            if n == 1:
                raise KeyError("k")
            if n == 2:
                raise Custom(7)
            log.append("none")
        except (IndexError, KeyError) as error:
            log.append((type(error).__name__, error.args))
        else:
            log.append("else")
        finally:
            log.append("finally")
    except ValueError as error:
        log.append((error.code, str(error)))
    return log


@cases((0,), (1,), (2,))
def p_finally(n):
    log = []

    def run():
        try:
            if n == 0:
                return "returned"
            if n == 1:
                raise RuntimeError("x")
            log.append("body")
        finally:
            log.append("cleanup")
        return "end"

    try:
        log.append(run())
    except RuntimeError:
        log.append("caught")
    return log


@cases()
def p_finally_overrides():
    def run():
        for _ in range(2):
            try:
                raise ValueError
            finally:
                break
        try:
            return 1
        finally:
            return 2  # noqa: B012

    return run()


@cases((5,))
def p_uncaught(n):
    raise Custom(n, "leaves")


@cases()
def p_uncaught_builtin():
    return int("x")


@cases()
def p_reraise():
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            raise
    except ZeroDivisionError as error:
        return str(error), error.__context__


@cases()
def p_chain():
    try:
        try:
            {}["a"]
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        return str(error), repr(error.__cause__), error.__suppress_context__


@cases()
def p_context():
    try:
        try:
            {}["a"]
        except KeyError:
            [][0]
    except IndexError as error:
        cause, context = error.__cause__, error.__context__
        return cause, type(context).__name__, context.args


@cases()
def p_from_none():
    try:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError from None
    except ValueError as error:
        return error.__cause__, error.__suppress_context__, type(error.__context__).__name__


@cases()
def p_context_over_calls():
    def inner():
        try:
            raise TypeError("t")
        except TypeError as e:
            return e.__context__

    try:
        raise ValueError("v")
    except ValueError as e:
        return inner() is e, e.__context__


@cases()
def p_name_deleted():
    try:
        raise ValueError
    except ValueError as e:
        kept = e
    try:
        e  # noqa: B018
    except UnboundLocalError:
        return type(kept).__name__


@cases()
def p_bad_raise():
    out = []
    for f in (1, "x", int, None):
        try:
            raise f
        except TypeError as error:
            out.append(str(error))
    try:
        raise ValueError from 3
    except TypeError as error:
        out.append(str(error))
    return out


@cases()
def p_bad_catch():
    try:
        try:
            raise ValueError
        except int:
            pass
    except TypeError as error:
        return str(error)


@cases((3,))
def p_through_frames(n):
    log = []

    def down(k):
        try:
            if k == 0:
                raise LookupError("bottom")
            return down(k - 1)
        finally:
            log.append(k)

    try:
        down(n)
    except LookupError as error:
        log.append(str(error))
    return log


@cases()
def p_loop_with_try():
    out = []
    for x in [1, 0, "a", None]:
        try:
            out.append(10 // x)
        except ZeroDivisionError:
            out.append("zero")
            continue
        except TypeError:
            out.append("type")
            if x is None:
                break
        finally:
            out.append("f")
    return out


@cases()
def p_nested_handlers():
    out = []
    try:
        raise ValueError(1)
    except ValueError as a:
        try:
            raise KeyError(2)
        except KeyError as b:
            out.append(b.__context__ is a)
        try:
            raise
        except ValueError as c:
            out.append(c is a)
    return out


@cases()
def p_assertion():
    try:
        assert [], "message"
    except AssertionError as error:
        return error.args


@cases()
def p_unbound_in_handler():
    try:
        return y  # noqa: F821
    except NameError as error:
        return str(error)


@cases()
def p_shown():
    one = ValueError((3,))
    return (
        repr(one),
        str(one),
        repr(StopIteration((2,))),
        "%r"
        % (
            KeyError(
                (),
            ),
        ),
        repr(RuntimeError(1, (2,))),
    )


class Kept(ImportError):
    pass


@cases()
def p_keywords_of_exceptions():
    out = []
    for make in (
        lambda: ImportError("a", name="n", path="p").path,
        lambda: ImportError(invalid="x"),
        lambda: ImportError(name="n", invalid="x"),
        lambda: ImportError(name="n", path="p", more=3),
        lambda: Kept("a", other=1),
        lambda: NameError(name="n", other=1),
        lambda: AttributeError(other=1),
        lambda: ValueError(name="n"),
    ):
        try:
            out.append(make())
        except TypeError as error:
            out.append(str(error))
    return out


class NotGeneric:
    __class_getitem__ = None


class Meta(type):
    def __getitem__(cls, key):
        return key


class Subscriptable(metaclass=Meta):
    __class_getitem__ = None


class Generic:
    def __class_getitem__(cls, key):
        return cls.__name__, key


@cases()
def p_subscripts_of_classes():
    out = [Subscriptable[1], Generic[2], list[int], type[int]]
    for cls in (Kept, NotGeneric, int, OSError, itertools.count, types.SimpleNamespace):
        try:
            cls[int]
        except TypeError as error:
            out.append(str(error))
    return out


__all__ = ["CASES"]
