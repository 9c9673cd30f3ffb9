"""JITSHAPE_LOGS: which artefacts are shown."""

import pytest

from jitshape.errors import UnknownOption
from jitshape.observe import logs


@pytest.fixture(autouse=True)
def quiet():
    yield
    logs.set_logs("")


def test_chosen_artefacts_only(capsys):
    logs.set_logs("dynamic,guards,-guards")
    logs.log("dynamic", "one\ntwo")
    logs.log("guards", "three")
    assert capsys.readouterr().err == "[dynamic] one\n[dynamic] two\n"
    assert logs.enabled("dynamic") and not logs.enabled("guards")


def test_plus_shows_debug(capsys):
    logs.set_logs("graph")
    logs.log("graph", "hidden", debug=True)
    logs.set_logs("+graph")
    logs.log("graph", "shown", debug=True)
    assert capsys.readouterr().err == "[graph] shown\n"


def test_unknown_name():
    with pytest.raises(UnknownOption, match="unknown log 'grahps'"):
        logs.set_logs("grahps")


def test_warnings_are_always_shown(capsys):
    logs.warn("careful")
    assert capsys.readouterr().err == "[jitshape] careful\n"
