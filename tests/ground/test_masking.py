"""No URL is shown with its password, however it is spelled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from harn.masking import is_secret_name, mask, mask_fields, mask_text, without_secrets_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:PW@h/db", "postgresql://u:***@h/db"),
        ("postgres://u:PW@h:5432/db?sslmode=require", "postgres://u:***@h:5432/db?sslmode=require"),
        ("postgresql+psycopg://u:PW@h", "postgresql+psycopg://u:***@h"),
        ("mysql://u:PW@h/db", "mysql://u:***@h/db"),
        ("sqlite://u:PW@h/x", "sqlite://u:***@h/x"),
        ("sqlite:///u:PW@h/x", "sqlite:///u:***@h/x"),
        ("postgresql:u:PW@h", "postgresql:***@h"),
        ("postgresql:/u:PW@h/db", "postgresql:***@h/db"),
        ("u:PW@h/db", "u:***@h/db"),
        ("//u:PW@h/db", "//u:***@h/db"),
        ("postgresql://:PW@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:P:W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P@W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P/W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P?W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P#W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P%40W@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:P?W=1@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?password=PW", "postgresql://h/db?password=***"),
        ("postgresql://h/db?user=u&password=PW&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("postgresql://h/db?sslpassword=PW", "postgresql://h/db?sslpassword=***"),
        ("postgresql://h/db?Pass%77ord=PW", "postgresql://h/db?Pass%77ord=***"),
        ("postgresql://u:PW@h/db?password=PW", "postgresql://u:***@h/db?password=***"),
        ("host=h user=u password=PW dbname=x", "host=h user=u password=*** dbname=x"),
        ("password = 'P\\' W' host=h", "password = *** host=h"),
        ("host=h sslpassword=PW:W@h", "host=h sslpassword=***"),
        ("host=h password='PW", "host=h password=***"),
    ],
)
def test_a_password_is_masked_wherever_it_stands(url: str, shown: str) -> None:
    assert mask(url) == shown
    assert mask(shown) == shown


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "sqlite:///state/events.sqlite?durability=normal",
        "sqlite:////srv/me@home/events.sqlite",
        "postgresql://u@h:5432/db?schema=x",
        "postgresql://h1:1,h2:2/db?application_name=a@b",
        "postgresql://[::1]:5432/db",
        "host=h user=u dbname=x",
        "",
    ],
)
def test_what_holds_no_password_is_shown_as_it_is(url: str) -> None:
    assert mask(url) == url


@given(
    scheme=st.sampled_from(["postgresql://", "mysql://", "x+y://", "postgresql:", "sqlite:///"]),
    user=st.text("abcu", max_size=3),
    before=st.text("ab:/#@%!$ ", max_size=4),
    after=st.text("ab:/#@%!$ ", max_size=4),
    rest=st.sampled_from(["", "/db", "/db?sslmode=require", "?password=x"]),
)
def test_no_spelling_of_a_password_gets_through(
    scheme: str, user: str, before: str, after: str, rest: str
) -> None:
    assert "SECRET" not in mask(f"{scheme}{user}:{before}SECRET{after}@host{rest}")


def test_a_sentence_keeps_its_words_and_loses_its_passwords() -> None:
    text = "unexpected argument (mysql://u:PW@h/x), 'postgresql:u:PW@h' and password=PW; see --help"

    assert mask_text(text) == (
        "unexpected argument (mysql://u:***@h/x), 'postgresql:***@h' and password=*** see --help"
    )
    assert mask_text("job 12:30@consumer is held") == "job 12:30@consumer is held"


def test_a_servers_message_loses_the_password_in_both_its_spellings() -> None:
    url = "postgresql://u:P%40W@h/db?sslpassword=KEY"

    assert without_secrets_of(url, 'no "P@W", no P%40W, no KEY') == 'no "***", no ***, no ***'


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("password", True),
        ("db_password", True),
        ("userpassword", True),
        ("Authorization", True),
        ("X-Api-Key", True),
        ("apiKey", True),
        ("AWSSecretKey", True),
        ("accessToken", True),
        ("token", True),
        ("set-cookie", True),
        ("max_tokens", False),
        ("input_tokens", False),
        ("key", False),
        ("dedupe_key", False),
        ("author", False),
        ("monkey", False),
    ],
)
def test_a_field_is_secret_by_the_words_of_its_name(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


def test_fields_are_masked_at_every_depth_and_nothing_else_changes() -> None:
    deep: Any = "canary"
    for _ in range(300):
        deep = [deep]

    found = mask_fields({"a": [{"token": {"x": 1}}, None, 1.5, True], "deep": deep, "pwd": None})

    assert found["a"] == [{"token": "***"}, None, 1.5, True]
    assert found["pwd"] is None
    assert "canary" not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "postgres:" * 20_000,
        "passw" * 50_000,
        "password = '" * 20_000,
        "a://" * 100_000,
        "?a=b&" * 100_000,
        "http://a?" + "x=1&" * 100_000,
    ],
)
def test_a_very_long_text_is_masked_in_a_moment(text: str) -> None:
    assert mask_text(f"{text} http://me:canary@host").endswith("***@host")
