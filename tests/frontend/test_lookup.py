"""What objects are is found out without running their code."""

from tests.frontend.tracing import check, run_traced, traced


class ByValue:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        raise AssertionError("runs natively while tracing")


def test_lookups_run_no_code_of_keys():
    def f(table):
        return 1 in table

    assert traced(f, [{ByValue(1): 2}])[1].cause.kind == "user_hash"


def test_sets_of_objects_are_handed_on():
    def f(objects, frozen):
        return objects, frozen, frozen is objects

    made = {ByValue(1)}, frozenset([ByValue(2)])
    assert run_traced(f, list(made)) == (*made, False)


def test_the_mapping_behind_a_view_of_a_class_is_handed_on():
    proxy = type.__dict__["__dict__"].__get__(ByValue)

    def f(table):
        return table, "number" in table, table["__module__"]

    result = run_traced(f, [proxy])
    assert result[0] is proxy and result[1:] == (False, __name__)


def test_what_may_pass_for_a_class_is_asked_natively():
    class Like:
        __bases__ = (int,)

    def first(x):
        return issubclass(x, int)

    def second(x):
        return issubclass(bool, x), isinstance(3, x)

    for function in (first, second):
        assert traced(function, [Like()])[1].cause.kind == "builtin"
    for function in (lambda: issubclass(3, int), lambda: isinstance(3, "int")):
        check(function)


def test_no_object_is_asked_for_its_class_while_tracing():
    asked = []

    class Hidden:
        @property
        def __class__(self):
            asked.append(1)
            raise RuntimeError

        def method(self):
            return 3

    class HiddenDict(Hidden, dict):
        pass

    class HiddenSet(Hidden, set):
        pass

    def read(*objects):
        return [x.method() for x in objects], [type(x) for x in objects]

    bound = HiddenDict().__reduce_ex__
    objects = [Hidden(), HiddenDict(), HiddenSet(), bound]
    _, outcome = traced(lambda a, b, c, d: read(a, b, c), objects)
    assert outcome.kind == "return" and not asked
