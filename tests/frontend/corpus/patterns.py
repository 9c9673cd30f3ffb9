# ruff: noqa
"""The match statement."""

from tests.frontend.corpus.basics import CASES, cases


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class Bare:
    pass


@cases(
    (0,),
    (1,),
    ("a",),
    (None,),
    (True,),
    (2.5,),
    ([],),
    ([1],),
    ([1, 2],),
    ([1, 2, 3, 4],),
    ((1, "x"),),
    ({},),
    ({"k": 1},),
    ({"k": 1, "j": 2},),
    ({"n": {"m": 3}},),
    (Point(1, 2),),
    (Point(0, 5),),
    ("string",),
    (range(2),),
    (b"b",),
    (Bare(),),
)
def p_match(x):
    match x:
        case 0:
            return "zero"
        case True | None:
            return "singleton"
        case 1 | "a":
            return "literal"
        case []:
            return "empty"
        case [1, str(s)]:
            return "tagged", s
        case [a]:
            return "one", a
        case [a, b]:
            return "two", a, b
        case [a, *rest, z]:
            return "many", a, rest, z
        case {"n": {"m": m}}:
            return "nested", m
        case {"k": v, **others}:
            return "key", v, others
        case Point(x=0, y=y):
            return "axis", y
        case Point(a, b) if a < b:
            return "point", a, b
        case str() as s if len(s) > 3:
            return "long", s
        case float(f):
            return "float", f
        case {}:
            return "mapping"
        case _:
            return "other"


@cases()
def p_match_errors():
    out = []
    for run in (three, not_a_class, bare):
        try:
            out.append(run(Point(1, 2)))
        except TypeError as error:
            out.append(str(error))
    return out


def three(p):
    match p:
        case Point(1, 2, 3):
            return True


def not_a_class(p):
    thing = 3
    match p:
        case thing():
            return True


def bare(p):
    match Bare():
        case Bare(1):
            return True


__all__ = ["CASES"]
