"""Options: names and values are checked, with messages that say what to do."""

import pytest

from jitshape.errors import UnknownOption
from jitshape.options import Options, environment, make_options, switched


def test_defaults():
    assert make_options() == Options()
    assert make_options({"recompile_limit": 3}).recompile_limit == 3


@pytest.mark.parametrize(
    "named, options, words",
    [
        ({"backend": "cuda"}, None, ["backend='cuda'", "'cpu'", "'triton'"]),
        ({"mode": "max-autotune"}, None, ["mode='max-autotune'", "'default'"]),
        ({"dynamic": "yes"}, None, ["dynamic='yes'"]),
        ({"dynamic": 1}, None, ["dynamic=1"]),
        ({"fullgraph": 1}, None, ["fullgraph=1"]),
        ({}, {"no_such": 1}, ["'no_such'", "recompile_limit"]),
        ({}, {"recompile_limit": 0}, ["recompile_limit=0", "positive"]),
        ({}, {"suppress_errors": "on"}, ["suppress_errors='on'"]),
    ],
)
def test_refused(named, options, words):
    with pytest.raises(UnknownOption) as caught:
        make_options(options, **named)
    for word in words:
        assert word in str(caught.value)


def test_callable_backend_is_kept():
    assert make_options(backend=print).backend is print


def test_environment(monkeypatch):
    monkeypatch.setenv("JITSHAPE_TRACE", "folder")
    assert environment("TRACE") == "folder"
    assert environment("NOTHING", "x") == "x"


@pytest.mark.parametrize("text", ["0", "false", "No", " OFF "])
def test_a_switch_that_is_off(monkeypatch, text):
    monkeypatch.setenv("JITSHAPE_CACHE", text)
    assert not switched("CACHE", True)


@pytest.mark.parametrize("text", ["1", "true", "0.01", "yes"])
def test_a_switch_that_is_on(monkeypatch, text):
    monkeypatch.setenv("JITSHAPE_FORCE", text)
    assert switched("FORCE")


def test_a_switch_that_nobody_set(monkeypatch):
    monkeypatch.setenv("JITSHAPE_FORCE", "")
    assert not switched("FORCE") and switched("FORCE", True)
