"""JITSHAPE_FORCE: frames that C calls go through the machine, with right results and counts."""

import builtins
import re
import time

import pytest

import jitshape
from jitshape import compiler
from jitshape.forcing import Force
from jitshape.options import Options
from tests.programs.test_surroundings import near_the_limit

DIGIT = re.compile("[0-9]")
FACTOR = [2]
LOG = []


@pytest.fixture
def force(monkeypatch):
    jitshape.compile(len)  # what is done once
    made = Force(lambda function: compiler.Compiler(function, Options(), serves_frames=True))
    monkeypatch.setattr(compiler, "_force", made)
    jitshape.reset()
    return made


def larger(match):
    LOG.append(match)
    return str(int(match[0]) * FACTOR[0])


def substituted(text):
    return DIGIT.sub(larger, text)


def frames():
    return jitshape.stats()["frames"]


def test_callbacks_of_c_are_handled(force):
    compiled = jitshape.compile(substituted)
    LOG.clear()
    assert compiled("a1b2") == "a2b4"
    handled = frames()["handled"]
    assert len(LOG) == 2 and handled >= 2 and not frames()["native"]
    FACTOR[0] = 3
    try:
        assert compiled("a1b2") == "a3b6"
    finally:
        FACTOR[0] = 2


def test_frames_that_stay_native_are_counted_by_reason(force):
    def program(text):
        def parts():
            yield from ("x", "y")

        class Local:
            pass

        return DIGIT.sub(lambda match: "".join(parts()), text), Local.__name__

    assert jitshape.compile(program)("1") == ("xy", "Local")
    assert frames()["native"] == {"the body of a class": 1}


def test_errors_of_callbacks_reach_the_program(force):
    def failing(match):
        raise KeyError(match[0])

    def program(text):
        try:
            return DIGIT.sub(failing, text)
        except KeyError as error:
            return error.args

    assert jitshape.compile(program)("7") == ("7",)


def test_nothing_is_routed_outside_of_compiled_calls(force):
    jitshape.compile(substituted)("1")
    handled = frames()["handled"]
    substituted("123")
    assert frames()["handled"] == handled


def test_functions_made_anew_share_what_is_compiled(force):
    def program(text):
        total = 0
        for factor in range(100):

            def added(match, factor=factor, *, offset=1):
                nonlocal total
                total += factor + offset
                return "x"

            DIGIT.sub(added, text)
        return total

    assert jitshape.compile(program)("1") == program("1")
    assert jitshape.stats()["compiles"] < 50 and not frames()["native"]


def test_cells_that_are_arguments_and_methods(force):
    class Base:
        def shown(self, match):
            return match[0] + "!"

    class Derived(Base):
        def shown(self, match):
            keep = lambda: match  # noqa: E731
            match = DIGIT.match("7")
            return super().shown(keep()) + type(self).__name__

    def program(text):
        return DIGIT.sub(Derived().shown, text)

    assert jitshape.compile(program)("1a") == program("1a") == "7!Deriveda"


def test_a_frame_that_stays_native_is_that_of_the_function(force):
    """Its free variables are free, it is called what it is called, its cells are its own."""

    def program(text):
        def replacement(match):
            nonlocal count
            count += 1
            return str(later)

        count = 0
        for _ in range(2):
            try:
                DIGIT.sub(replacement, text)
            except NameError as error:
                seen = (
                    str(error),
                    error.__traceback__.tb_next.tb_frame.f_code is replacement.__code__,
                )
        later = 3
        return *seen, count, DIGIT.sub(replacement, text), count

    assert jitshape.compile(program)("1a") == program("1a")
    assert program("1a")[1:] == (True, 2, "3a", 3)


def test_the_compiler_at_work_behind_a_break_is_not_the_program(force):
    """Pieces are made while the program runs; what makes them is not compiled in turn."""

    def program(text):
        for _ in range(2):
            time.perf_counter()
        return DIGIT.sub(larger, text)

    compiled = jitshape.compile(program)
    assert compiled("1") == "2"
    assert {each.body.code.co_name for each in force.shared.values()} == {"larger"}


def test_telling_of_a_call_left_native_is_not_the_program(force):
    def program(text):
        return DIGIT.sub(lambda match: str(failing(match[0])), text)

    def failing(digit):
        raise_or_give(digit)
        return digit

    def raise_or_give(digit):
        if digit == "3":
            raise KeyError(digit)

    compiled = jitshape.compile(program)
    for _ in range(3):
        with pytest.raises(KeyError):
            compiled("123")
    assert {each.body.code.co_filename for each in force.shared.values()} == {__file__}


def test_frames_are_handled_where_the_program_has_no_room(force):
    for room in (9, 40):
        assert jitshape.compile(near_the_limit)(room) == near_the_limit(room)


def test_frames_run_natively_while_a_builtin_is_gone(force):
    def program(text):
        def replacement(match):
            return match[0] * 2

        kept = builtins.__dict__.pop("iter")
        try:
            shown = DIGIT.sub(replacement, text)
        finally:
            builtins.__dict__["iter"] = kept
        return shown, DIGIT.sub(replacement, text)

    assert jitshape.compile(program)("1a") == ("11a", "11a")
    assert frames()["native"]["builtins"] >= 1
