# ruff: noqa
"""Operators, names, loops, containers, text."""

CASES = {}


def cases(*args):
    def note(function):
        CASES[function] = args or ((),)
        return function

    return note


G = 10
COUNTER = [0]


@cases((1, 2), (7, -3), (2.5, 4), (True, 3))
def p_arithmetic(a, b):
    return a + b, a - b, a * b, a / b, a // b, a % b, a**2, -a, +b, (a, b)


@cases((6, 3), (255, 8))
def p_bits(a, b):
    return a & b, a | b, a ^ b, a << 2, a >> 1, ~a


@cases((1, 0), ("a", 1), ([1], (2,)), (None, 1))
def p_errors(a, b):
    return a / b + a


@cases(("ab", "cd"), ([1], [2, 3]), ((1,), (2,)))
def p_concatenate(a, b):
    return a + b, a * 2, 3 * b, a == b, a < b, a != b, a >= b


@cases((1,), ("x",), ([],))
def p_inplace(a):
    b = a
    b += type(a)()
    b *= 3
    return a, b, a is b


@cases((5,), (0,), (-1,))
def p_branches(n):
    if n > 3:
        r = "big"
    elif n == 0:
        r = "zero"
    else:
        r = "small"
    s = "t" if n else "f"
    return r, s, not n, n and 5, n or 6, 1 < n < 9, n is None, n is not None


@cases((10,), (0,))
def p_loops(n):
    total, seen = 0, []
    for i in range(n):
        if i == 7:
            break
        if i % 2:
            continue
        total += i
        seen.append(i)
    else:
        seen.append("else")
    while total > 3:
        total -= 2
    else:
        seen.append("done")
    return total, seen


@cases((3,))
def p_nested_loops(n):
    out = []
    for i in range(n):
        for j in range(i, n):
            if j == 2:
                break
            out.append((i, j))
        else:
            out.append(i)
    return out


@cases()
def p_containers():
    a = [1, *range(3), 5]
    b = (*a, 2)
    c = {1, *a}
    d = {"x": 1, **{"y": 2, "x": 3}, "z": a}
    e = {1: 2, "k": (3, 4)}
    return a, b, sorted(c), d, e, [], (), {}, a[1:3], b[::-1], a[-1], d["z"][0]


@cases(([3, 1, 2],))
def p_list_mutation(x):
    x.append(4)
    x[0] = 9
    del x[1]
    x[1:2] = [7, 7]
    x += [5]
    del x[-2:]
    return x, len(x), 7 in x, 100 not in x


@cases(({"a": 1},))
def p_dict_mutation(d):
    d["b"] = 2
    d["a"] += 5
    del d["b"]
    d.update(c=3)
    return d, list(d), list(d.items()), d.get("z"), d.get("z", 4), "a" in d


@cases(([1, 2, 3],), ((1, 2),), ("abcd",), (range(3),), (5,))
def p_unpack(x):
    try:
        a, b, c = x
        return a, b, c
    except (ValueError, TypeError) as error:
        return str(error)


@cases(([1, 2, 3, 4],), ((1, 2),), ("a",), (7,))
def p_unpack_star(x):
    try:
        a, *b, c = x
        return a, b, c
    except (ValueError, TypeError) as error:
        return str(error)


@cases()
def p_unpack_nested():
    (a, (b, *c)), d = (1, (2, 3, 4)), 5
    a, b = b, a
    [e, f] = "xy"
    return a, b, c, d, e, f


@cases((3, "q"), (2.5, None))
def p_format(a, b):
    return f"{a}", f"{a!r:>6}|{b!s}|{b!a}", f"{a:{4}}", f"{{}}{a=}", "%s-%r" % (a, b)


@cases()
def p_global_read():
    return G, len([1]), COUNTER


@cases()
def p_undefined_global():
    return undefined_name  # noqa: F821


@cases((True,), (False,))
def p_unbound(flag):
    if flag:
        x = 1
    return x


@cases()
def p_delete_local():
    x = 1
    del x
    try:
        return x
    except UnboundLocalError as error:
        return str(error)


@cases((4,))
def p_comprehensions(n):
    a = [i * i for i in range(n) if i]
    b = {i: str(i) for i in range(n)}
    c = {i % 2 for i in range(n)}
    d = [(i, j) for i in range(n) for j in range(i)]
    e = [[k for k in range(i)] for i in range(n)]
    f = tuple(i + 1 for i in range(n))
    return a, b, sorted(c), d, e, f, sum(i for i in range(n))


@cases((2,))
def p_comprehension_scope(n):
    i = "outer"
    fs = [lambda: i + k for k in range(n) for i in range(3)]
    return [f() for f in fs], i


@cases((3,))
def p_walrus(n):
    out = []
    while (n := n - 1) >= 0:
        out.append(n)
    if any((hit := x) > 1 for x in [0, 1, 2, 3]):
        out.append(hit)
    return out


@cases((5, 3))
def p_chained(a, b):
    return a > b > 0, a == 5 == b, 0 < b <= a != 7, (a, b) == (5, 3), [a] == [b]


@cases()
def p_slices():
    x = list(range(10))
    x[2:4] = []
    x[::2] = [0] * len(x[::2])
    s = slice(1, 5, 2)
    return x, x[s], "hello"[1:-1], x[slice(None)], s.start, s.step


@cases((7,))
def p_assert(n):
    assert n == 7, "fine"
    assert n < 7, f"too large: {n}"


@cases()
def p_identity():
    a, b = [], []
    c = a
    return a is b, a is c, None is None, a is not b, (a == b)


@cases((3,))
def p_star_index(n):
    grid = [[0] * n for _ in range(n)]
    grid[1][2] = 5
    grid[0][0], grid[2][1] = 1, 2
    return grid


@cases()
def p_strings():
    s = "Hello, World"
    return s.lower(), s.split(", "), s.replace("l", "L"), "-".join(["a", "b"]), s[::-1], s.find("W")


@cases()
def p_import():
    import math
    import os.path
    from collections import OrderedDict as OD
    from math import floor

    return math.sqrt(16), floor(2.5), OD is not None, os.path.join is not None


@cases()
def p_long_jump():
    """More than 255 constants and instructions: EXTENDED_ARG."""
    total = 0
    for i in range(2):
        total += i
        x = [
            *(1001, 1002, 1003),
            1.5,
            2.5,
            3.5,
            4.5,
            5.5,
            6.5,
            7.5,
            8.5,
            9.5,
            10.5,
            11.5,
            12.5,
        ]
        y = {"a0": i, "a1": total, "a2": i, "a3": total, "a4": i, "a5": total, "a6": i, "a7": i}
        z = {"b0": i, "b1": total, "b2": i, "b3": total, "b4": i, "b5": total, "b6": i, "b7": i}
        w = f"{i}{total}{i}{total}{i}{total}{i}{total}{i}{total}{i}{total}{i}{total}{i}{total}"
        v = (i + 1) * (i + 2) * (i + 3) * (i + 4) * (i + 5) * (i + 6) * (i + 7) * (i + 8) + (
            (i + 1) * (i + 2) * (i + 3) * (i + 4) * (i + 5) * (i + 6) * (i + 7) * (i + 8)
        )
    return total, x, y, z, w, v


@cases((3,))
def p_globals_written(a):
    global WRITTEN_NAME
    WRITTEN_NAME = a
    found = [WRITTEN_NAME, "WRITTEN_NAME" in globals()]
    del WRITTEN_NAME
    return found, "WRITTEN_NAME" in globals()


@cases(([1, None, 2, None],), ([None, None],), ([],))
def p_loops_on_none(items):
    rest, taken = list(items), []
    item = None
    while item is None and rest:
        item = rest.pop()
    while rest and (item := rest.pop()) is not None:
        taken.append(item)
    value = taken
    while value is not None:
        taken.append(len(taken))
        value = None if len(taken) > 3 else value
    value = None
    while value is None:
        value = taken
    return item, taken
