"""groupby, tee, pairwise, compress and the combinatoric iterators, as plain Python runs them."""

import itertools

import pytest

from tests.frontend.tracing import check


def groups(items):
    log = []

    def key(x):
        log.append(x)
        return x // 10

    return [(k, list(g)) for k, g in itertools.groupby(items, key)], log


def groups_read_late(items):
    made = list(itertools.groupby(items))
    return [k for k, _ in made], [list(g) for _, g in made]


def groups_left_early(items):
    found = []
    for key, group in itertools.groupby(items, lambda x: x % 2):
        found.append((key, next(group)))
    return found


def tees(items):
    a, b = itertools.tee(items)
    first = [next(a, None), next(a, None)]
    c, d = itertools.tee(a)
    return first, list(b), list(c), list(d), itertools.tee(items, 0), list(b)


def pairs(items):
    return list(itertools.pairwise(items)), list(itertools.compress(items, [1, 0, True, "", "x"]))


def arranged(items):
    made = [
        itertools.permutations(items),
        itertools.permutations(items, 2),
        itertools.combinations(items, 2),
        itertools.combinations(items, r=1),
        itertools.combinations_with_replacement(items, 2),
        itertools.product(items, [1, 2]),
        itertools.product(items[:2], repeat=2),
    ]
    return [list(rows) for rows in made]


def complaints(items):
    found = []
    for call in (
        lambda: itertools.combinations(items, -1),
        lambda: itertools.islice(items, -1),
        lambda: itertools.islice(items, 0, 5, 0),
        lambda: itertools.tee(items, -2),
        lambda: itertools.permutations(items, -3),
    ):
        try:
            found.append(call())
        except ValueError as error:
            found.append(str(error))
    return found


PROGRAMS = [groups, groups_read_late, groups_left_early, tees, pairs, arranged, complaints]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("items", [[1, 12, 13, 13, 4], [], [7]], ids=len)
def test_as_plain(program, items):
    check(program, items)
