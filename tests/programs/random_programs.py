"""Random small programs with graph breaks at random places.

In: a seed.  Out: the source of a module whose `main(x, k)` calls functions of the same module,
with loops, `with`, `try`, comprehensions, generators, closures, classes and mutations, and `note`
wherever chance put it: a call that is never captured.  The text is that of ordinary Python, so
that its lines in tracebacks can be compared.
"""

from __future__ import annotations

import random

HEADER = """
import contextlib
import torch

STATE = {"count": 0}
SEEN = []


class Trouble(Exception):
    pass


class Manager:
    def __init__(self, name, swallows=False):
        self.name, self.swallows = name, swallows

    def __enter__(self):
        SEEN.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, trace):
        SEEN.append(("exit", self.name, kind and kind.__name__))
        return self.swallows and kind is Trouble


@contextlib.contextmanager
def managed(name):
    SEEN.append(("open", name))
    try:
        yield len(SEEN)
    finally:
        SEEN.append(("close", name))


class Thing:
    total = 0

    def __init__(self, size):
        self.size = size
        self.parts = []

    def grow(self, x, by=1):
        self.size += by
        self.parts.append(x)
        Thing.total += 1
        return x + self.size

    @property
    def doubled(self):
        self.size += 1
        return self.size * 2

    def __getitem__(self, index):
        return self.parts[index]

    def __len__(self):
        return len(self.parts)
"""


class Writer:
    """Writes functions, deepest first, so that each calls only those before it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.functions: list[str] = []
        self.generators: list[str] = []
        self.names = 0
        self.budget = 0
        self.breaks = 0

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # ---- expressions

    def number(self) -> str:
        return self.random.choice(["k", "1", "2", "len(a)", "i", "STATE['count'] % 5", "t.size"])

    def tensor(self, depth: int = 0) -> str:
        choose = self.random.random
        if depth > 2 or choose() < 0.3:
            return self.random.choice(["x", "y", "x", "a[0]"])
        inner = self.tensor(depth + 1)
        if choose() < 0.25:
            return f"{inner}.{self.random.choice(['sin()', 'tanh()', 'abs()', 'neg()'])}"
        if choose() < 0.3 and self.functions:
            return f"{self.random.choice(self.functions)}({inner}, {self.number()})"
        if choose() < 0.15:
            return f"t.grow({inner}, by={self.number()})"
        if choose() < 0.15:
            return f"({inner} if {self.condition()} else {self.tensor(depth + 1)})"
        operand = self.number() if choose() < 0.5 else self.tensor(depth + 1)
        if choose() < 0.2:
            operand = self.noted()
        return f"({inner} {self.random.choice('+-*')} {operand})"

    def condition(self) -> str:
        return self.random.choice(
            [
                "k > 1",
                "i % 2",
                "len(a) > 2",
                "x.shape[0] > 2",
                "a",
                "'p' in d",
                "STATE['count'] > 2",
                "y.detach().sum() > 0",
                "t",
            ]
        )

    def noted(self) -> str:
        """A number that is noted on its way."""
        self.breaks += 1
        what = self.random.choice(["i", "k", "len(a)", "x", "y", "sorted(d)"])
        return f"note({self.breaks}, {what})"

    # ---- statements

    def body(self, depth: int, loop: bool = False) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, loop)

    def statement(self, depth: int, loop: bool) -> None:
        self.budget -= 1
        simple = [self.assign, self.note, self.mutate, self.assign, self.comprehension]
        nested = [self.for_, self.while_, self.with_, self.try_, self.if_, self.consume]
        if loop:
            simple.append(self.jump)
        if depth > 4 or self.budget <= 0:
            nested = []
        else:
            simple.append(self.closure)
            simple.append(self.unpack)
        if depth > 1:
            simple.extend([self.raise_, self.return_])
        choice = self.random.choice([*simple, *nested])
        if choice in (self.for_, self.while_, self.jump, self.with_, self.try_, self.if_):
            choice(depth, loop)
        else:
            choice(depth)

    def assign(self, depth: int) -> None:
        kind = self.random.random()
        target = self.random.choice(["x", "y", "y"])
        if kind < 0.15:
            self.put(depth, f"{target} += {self.tensor(1)}")
        else:
            self.put(depth, f"{target} = {self.tensor()}")

    def note(self, depth: int) -> None:
        self.put(depth, self.noted())

    def mutate(self, depth: int) -> None:
        self.put(
            depth,
            self.random.choice(
                [
                    "a.append(y)",
                    "a.insert(0, x * 2)",
                    "d['p'] = y",
                    f"d[{self.number()}] = x",
                    "d.pop('p', None)",
                    "STATE['count'] += 1",
                    "SEEN.append(k)",
                    "t.size += 1",
                    "t.parts = [*t.parts, y]",
                    "a[-1] = a[-1] + 1",
                    "k = t.doubled",
                    f"d.setdefault('q', []).append({self.noted()})",
                    f"a.append(x * {self.noted()})",
                    "Thing.total += k",
                    "i, k = k, i",
                ]
            ),
        )

    def comprehension(self, depth: int) -> None:
        item = self.noted() if self.random.random() < 0.4 else "j"
        where = f" if {self.condition()}" if self.random.random() < 0.3 else ""
        kind = self.random.randrange(4)
        if kind == 0:
            self.put(depth, f"a = [x, *[y * {item} for j in range(2){where}]]")
        elif kind == 1:
            self.put(depth, f"d = {{j: {item} for j in range(2){where}}}")
        elif kind == 2:
            self.put(depth, f"k = sum({item} for j in (1, 2){where})")
        else:
            self.put(depth, f"y = sum([v * {item} for j, v in enumerate(a){where}], y)")

    def unpack(self, depth: int) -> None:
        self.put(depth, f"y, *rest = {self.tensor(1)}, {self.noted()}, *a")
        self.put(depth, "k = len(rest)")

    def closure(self, depth: int) -> None:
        name = self.fresh("inner")
        self.put(depth, f"def {name}(v, *more, w=1):")
        self.put(depth + 1, "nonlocal y")
        self.put(depth + 1, f"y = y + {self.noted() if self.random.random() < 0.5 else 'w'}")
        if self.random.random() < 0.3:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, "raise Trouble('closure', w)")
        self.put(depth + 1, "return v * w + len(more)")
        self.put(depth, f"x = {name}(x, *a, w={self.number()})")

    def raise_(self, depth: int) -> None:
        kind = self.random.randrange(5)
        if kind == 0:
            self.put(depth, f"if {self.condition()}:")
            self.put(depth + 1, f"raise Trouble('here', {self.number()})")
        elif kind == 1:
            self.put(depth, f"fail({self.noted()}, {self.random.choice('0123')})")
        elif kind == 2:
            self.put(depth, "y = d['absent']")
        elif kind == 3:
            self.put(depth, f"y = a[{self.number()}]")
        else:
            self.put(depth, f"x = x.reshape({self.number()}, -1).reshape(x.shape)")

    def return_(self, depth: int) -> None:
        self.put(depth, f"if {self.condition()}:")
        self.put(depth + 1, f"return {self.tensor(1)}")

    def jump(self, depth: int, loop: bool) -> None:
        self.put(depth, f"if {self.condition()}:")
        self.put(depth + 1, self.random.choice(["break", "continue"]))

    def if_(self, depth: int, loop: bool) -> None:
        self.put(depth, f"if {self.condition()}:")
        self.body(depth + 1, loop)
        if self.random.random() < 0.5:
            self.put(depth, "else:")
            self.body(depth + 1, loop)

    def for_(self, depth: int, loop: bool) -> None:
        self.put(
            depth,
            self.random.choice(
                [
                    "for i in range(3):",
                    "for i, y in enumerate([*a][:2]):",
                    "for i, y in zip((1, 2), [x, y]):",
                    "for i in sorted([2, 1]):",
                    "for name, i in list({'p': 1, 'q': 2}.items()):",
                    "for i in map(abs, [-1, 2]):",
                    "for i in (j * 2 for j in (1, 2)):",
                ]
            ),
        )
        self.body(depth + 1, True)
        if self.random.random() < 0.2:
            self.put(depth, "else:")
            self.body(depth + 1, loop)

    def while_(self, depth: int, loop: bool) -> None:
        name = self.fresh("n")
        self.put(depth, f"{name} = 0")
        self.put(depth, f"while {name} < 2:")
        self.put(depth + 1, f"{name} += 1")
        self.body(depth + 1, True)

    def with_(self, depth: int, loop: bool) -> None:
        name = self.fresh("m")
        self.put(
            depth,
            self.random.choice(
                [
                    f"with Manager('{name}') as name:",
                    f"with Manager('{name}', True):",
                    f"with managed('{name}') as i:",
                    "with torch.no_grad():",
                    "with contextlib.suppress(Trouble, KeyError):",
                    f"with Manager('{name}'), managed('{name}'):",
                ]
            ),
        )
        self.body(depth + 1, loop)

    def try_(self, depth: int, loop: bool) -> None:
        self.put(depth, "try:")
        self.body(depth + 1, loop)
        kind = self.random.random()
        if kind < 0.75:
            name = self.random.choice(["Trouble", "(KeyError, Trouble)", "Exception"])
            self.put(depth, f"except {name} as error:")
            if self.random.random() < 0.6:
                self.put(depth + 1, "SEEN.append((type(error).__name__, error.args))")
            self.body(depth + 1, loop)
            again = self.random.random()
            if again < 0.15:
                self.put(depth + 1, "raise")
            elif again < 0.3:
                self.put(depth + 1, f"raise Trouble({self.number()}) from error")
            if self.random.random() < 0.3:
                self.put(depth, "else:")
                self.body(depth + 1, loop)
        if kind >= 0.75 or self.random.random() < 0.3:
            self.put(depth, "finally:")
            self.body(depth + 1, False)

    def consume(self, depth: int) -> None:
        if not self.generators:
            self.assign(depth)
            return
        name = self.random.choice(self.generators)
        kind = self.random.randrange(4)
        if kind == 0:
            self.put(depth, f"for y in {name}(x, {self.number()}):")
            self.body(depth + 1, True)
        elif kind == 1:
            self.put(depth, f"a = list({name}(y, {self.number()}))")
        elif kind == 2:
            self.put(depth, f"y = sum({name}(x, 1), y)")
        else:
            self.put(depth, f"x, *a = {name}(x, {self.number()})")
            self.put(depth, "a = a or [x]")

    # ---- functions

    def function(self, name: str, budget: int) -> None:
        self.budget = budget
        self.put(0, "")
        self.put(0, f"def {name}(x, k):")
        self.put(1, "y, i, a, d, t = x * 2, 0, [x], {'p': x}, Thing(k)")
        for _ in range(self.random.randint(2, 4)):
            self.statement(1, False)
        self.put(1, f"return {self.tensor(1)} + k")
        self.functions.append(name)

    def generator(self, name: str, budget: int) -> None:
        self.budget = budget
        self.put(0, "")
        self.put(0, f"def {name}(x, k):")
        self.put(1, "y, i, a, d, t = x * 2, 0, [x], {'p': x}, Thing(k)")
        self.put(1, "yield x")
        self.statement(1, False)
        self.put(
            1, self.random.choice(["yield y", "yield from [x, y]", f"yield x * {self.noted()}"])
        )
        self.statement(1, False)
        self.generators.append(name)

    def main(self) -> None:
        self.put(0, "")
        self.put(0, "def main(x, k):")
        self.put(1, "y, i, a, d, t = x * 2, 0, [x], {'p': x}, Thing(k)")
        for _ in range(self.random.randint(3, 5)):
            self.statement(1, False)
        self.put(1, f"y = {self.functions[-1]}(y, k)")
        self.put(1, "return x, y, i, k, a, list(d.items()), t.size, t.parts")


def write_program(seed: int) -> str:
    """The source of a module; it expects `note` and `fail` among its globals."""
    writer = Writer(seed)
    writer.function("deep", 5)
    if writer.random.random() < 0.6:
        writer.generator("numbers", 3)
    writer.function("middle", 6)
    writer.budget = 7
    writer.main()
    return HEADER + "\n".join(writer.lines) + "\n"
