from __future__ import annotations

from pathlib import Path

import pytest

from harn import InvalidOption
from harn.settings import Settings, variables


def test_nothing_set_gives_the_defaults() -> None:
    assert Settings.load({}) == Settings()
    assert Settings().state_dir == Path(".harn")


def test_what_is_set_is_read_into_its_type() -> None:
    loaded = Settings.load({"HARN_STATE_DIR": "/var/lib/harn", "HARN_DEBUG": "on"})

    assert loaded.state_dir == Path("/var/lib/harn")
    assert loaded.debug is True


@pytest.mark.parametrize(
    ("name", "value"), [("HARN_DEBUG", "maybe"), ("HARN_STATE_DIR", " "), ("HARN_STORAGE", "")]
)
def test_a_bad_value_is_refused_with_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        Settings.load({name: value})


def test_a_bad_duration_is_refused_once() -> None:
    with pytest.raises(InvalidOption) as refused:
        Settings.load({"HARN_KEEP_DEAD": "soon"})

    assert str(refused.value).startswith("HARN_KEEP_DEAD='soon' is not accepted: a duration such")


def test_every_variable_has_a_meaning_and_our_prefix() -> None:
    known = variables()

    assert len(known) > 10
    for variable in known:
        assert variable.name.startswith("HARN_")
        assert variable.meaning.endswith(".")
