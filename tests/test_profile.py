"""Shape profiles: what one run learned, the next one knows; damaged files; many processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jitshape
from jitshape import profile
from jitshape.observe import logs
from jitshape.profile import Function, Profile, code_key, parse, read, text_of, write

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = textwrap.dedent(
    """
    import sys
    import torch
    import jitshape

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x, factor):
            self.calls += 1
            return x.relu() * factor + self.calls

    scale = jitshape.compile(Scale())
    for n in map(int, sys.argv[1:]):
        scale(torch.randn(2, n), n / 2)
    print(jitshape.stats()["compiles"])
    """
)


@pytest.fixture
def program(tmp_path, monkeypatch, capsys):
    """Runs PROGRAM, or what stands in its file, as if in a process of its own."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setenv("JITSHAPE_PROFILE", "")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))

    def run(*sizes, **environment):
        jitshape.reset()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"JITSHAPE_{name}", value)
            patch.setattr(profile, "_active", None)
            patch.setattr(sys, "argv", [str(path), *map(str, sizes)])
            logs.set_logs("dynamic")
            exec(compile(path.read_text(), str(path), "exec"), {})
            profile.active().save()
        logs.set_logs("")
        captured = capsys.readouterr()
        return captured.out.strip(), captured.err

    run.file = tmp_path / "cache" / "profile.json"
    run.source = path
    yield run
    profile._active = None


def functions_of(path):
    return json.loads(path.read_text())["functions"]


def test_a_second_run_compiles_the_dynamic_version_at_once(program):
    assert program(4, 6, 7)[0] == "2"
    (row,) = functions_of(program.file).values()
    assert row["name"] == "Scale.forward" and row["sources"] == {
        "factor": [(2.0).hex(), (3.0).hex()],
        "self.calls": [0, 1],
        "x.size(1)": [4, 6],
    }
    before = program.file.read_bytes()
    moved = program.source.with_name("elsewhere.py")
    program.source.rename(moved)
    program.source.write_text("# the same, lower down\n\n" + moved.read_text())
    compiles, log = program(9, 4, 5)
    assert compiles == "1" and program.file.read_bytes() == before
    assert "x.size(1) is dynamic: it was 4 then 6 in an earlier run" in log
    related = "x.size(0) is dynamic with x.size(1), which is dynamic: "
    assert related + "it was 4 then 6 in an earlier run" in log


def test_the_end_of_a_process_saves(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    file = tmp_path / "profile.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITSHAPE_PROFILE": str(file)}
    for compiles in ("2", "1"):
        command = [sys.executable, str(path), "4", "6", "7"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=250, env=environment, check=True
        )
        assert done.stdout.strip() == compiles


def test_other_code_knows_nothing_of_it(program):
    program(4, 6)
    program.source.write_text(PROGRAM.replace("x.relu()", "x.tanh()"))
    assert program(4, 6)[0] == "2" and len(functions_of(program.file)) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": "jitshape shape profile", "version": 99, "functions": {}}',
        '{"format": "jitshape shape profile", "version": 1, "functions": {"k": {"name": "f"}}}',
        '{"format": "jitshape shape profile", "version": 1, "functions": {"k": {"name": "f", '
        '"used": "2026-01-01", "sources": {"x": [true]}}}}',
    ],
)
def test_a_damaged_file_is_a_warning_and_a_fresh_start(content, tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text(content)
    assert read(path) == {}
    assert f"the shape profile {path} cannot be read" in capsys.readouterr().err
    write(path, {"key": Function("f", "2026-01-01", {"n": [1, 2]})})
    assert read(path)["key"].sources == {"n": [1, 2]}
    assert capsys.readouterr().err == ""


def test_a_damaged_file_does_not_stop_a_program(program):
    program.file.parent.mkdir()
    program.file.write_text("\x00")
    compiles, log = program(4, 6)
    assert compiles == "2" and log.count("cannot be read") == 1
    assert len(functions_of(program.file)) == 1


def test_switched_off_or_unwritable(program, tmp_path):
    program(4, 6, PROFILE="0")
    assert not program.file.exists()
    other = tmp_path / "other.json"
    program(4, 6, PROFILE=str(other))
    assert len(functions_of(other)) == 1 and not program.file.exists()
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    compiles, log = program(4, 6, CACHE_DIR=str(blocked))
    assert compiles == "2" and log.count("cannot be written") == 1


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "profile.json"
    code = (
        "import sys; from pathlib import Path; from jitshape.profile import Function, write\n"
        "for i in range(20):\n"
        "    write(Path(sys.argv[1]), {f'{sys.argv[2]}.{i}': Function('f', 'd', {'n': [1, i]})})\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(k)], cwd=ROOT)
        for k in range(3)
    ]
    assert [p.wait(timeout=120) for p in running] == [0, 0, 0]
    assert len(read(path)) == 60
    assert sorted(p.name for p in tmp_path.iterdir()) == ["profile.json", "profile.json.lock"]


def test_joining_keeps_the_newest_values_and_functions(monkeypatch, tmp_path):
    path = tmp_path / "profile.json"
    write(
        path, {"k": Function("f", "2026-01-01", {"n": list(range(16)), "s": [0.5, float("nan")]})}
    )
    write(path, {"k": Function("f", "2026-01-02", {"n": [3, 99], "s": [float("nan"), -0.0]})})
    found = read(path)["k"]
    assert found.used == "2026-01-02"
    assert found.sources["n"] == [1, 2, *range(4, 16), 3, 99]
    assert [v.hex() for v in found.sources["s"]] == [(0.5).hex(), "nan", "-0x0.0p+0"]
    monkeypatch.setattr(profile, "KEPT_FUNCTIONS", 1)
    write(path, {"old": Function("g", "2025-01-01", {"n": [1, 2]})})
    assert list(read(path)) == ["k"]
    assert parse(text_of(read(path))).keys() == {"k"}


def test_only_what_changed_is_learned(tmp_path):
    code = (lambda n: n).__code__
    first = Profile(tmp_path / "profile.json")
    first.learn(code, {"n": [3], "m": [4]})
    first.save()
    assert not first.path.exists()
    first.learn(code, {"n": [3, 5], "m": [4]})
    first.save()
    assert Profile(first.path).values(code) == {"n": [3, 5]}


def test_the_key_is_the_content_of_the_code():
    def make(text):
        return compile(text, "a.py", "exec").co_consts[0]

    text = "def f(x):\n    return x + {c} if x in (1, {{2, 3}}) else (lambda: x)\n"
    one, moved = make(text.format(c=1)), make("\n\n" + text.format(c=1))
    assert one is not moved and code_key(one) == code_key(moved)
    others = [text.format(c=c) for c in ("1.0", "True", "-1", "0")]
    keys = {code_key(make(t)) for t in (*others, text.format(c=1), others[0].replace("f(", "g("))}
    assert len(keys) == 6


def test_keys_are_the_same_in_every_process():
    code = (
        "from jitshape.profile import code_key\n"
        "def f(x):\n    return x in {'a', 'b', 'c', 1, (2, 'd')}, (lambda: x)\n"
        "print(code_key(f.__code__))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(3)
    }
    assert len(keys) == 1 and len(keys.pop().strip()) == 32


def test_reset_forgets_earlier_runs_but_keeps_the_file(program):
    program(4, 6)
    program.source.write_text(
        PROGRAM.replace("import jitshape", "import jitshape; jitshape.reset()")
    )
    assert program(4, 6)[0] == "2" and len(functions_of(program.file)) == 1


def test_command_line(program):
    program(4, 6)

    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "jitshape", "profile", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "JITSHAPE_PROFILE": str(program.file)},
        )

    shown = command().stdout
    assert "1 function\n" in shown and "Scale.forward, used 20" in shown
    assert "    x.size(1) was 4, 6" in shown
    assert "0 functions" in command("--clear").stdout and not program.file.exists()
