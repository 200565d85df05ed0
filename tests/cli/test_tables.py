"""Tables that fit a terminal: no word is broken, whatever the width."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harn.cli.colours import plain
from harn.cli.tables import cells, cut, fold, table as coloured


def table(*args: Any) -> str:
    return plain(coloured(*args))


HEADINGS = ("queue", "ready", "in flight", "dead", "error")
ROWS = [
    ("review-requests-of-customers", 106, 2, 0, "the provider answered 503, try again later"),
    ("mail", 3, 0, 1, ""),
]


def words(dice: Random, most: int) -> str:
    """Return up to *most* words of up to 12 letters, some of them wide."""
    lengths = [dice.randint(1, 12) for _ in range(dice.randint(1, most))]
    return " ".join("".join(dice.choices("abc東-", k=each)) for each in lengths)


def value(dice: Random) -> object:
    return dice.choice((None, "", dice.randrange(10**6), words(dice, 6)))


@pytest.mark.parametrize("seed", range(50))
def test_every_word_is_whole_and_every_line_fits(seed: int) -> None:
    dice = Random(seed)
    width = dice.randint(40, 100)
    rows = [(words(dice, 1), *(value(dice) for _ in range(3))) for _ in range(4)]

    text = table(("name", "in flight", "note", "what it was"), rows, width)

    assert all(cells(line) <= width for line in text.splitlines())
    shown = set(text.split())
    values = [str(value) for row in rows for value in row if value not in (None, "-")]
    assert {word for value in values for word in value.split()} <= shown


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert table(HEADINGS, ROWS, 120).splitlines()[0].split("  ")[0] == "queue"
    assert len(table(HEADINGS, ROWS, 120).splitlines()) == 3


def test_long_texts_are_wrapped_at_spaces() -> None:
    assert table(("id", "error"), [(7, "the provider answered 503, try again later")], 30) == (
        "id  error\n 7  the provider answered 503,\n    try again later"
    )


def test_a_row_that_does_not_fit_is_a_block() -> None:
    assert table(HEADINGS, ROWS, 40) == (
        "review-requests-of-customers\n"
        "  ready 106  in flight 2  dead 0\n"
        "  error the provider answered 503, try\n"
        "    again later\n"
        "mail\n"
        "  ready 3  in flight 0  dead 1"
    )


def test_in_a_pipe_a_row_is_a_line_with_every_column() -> None:
    assert table(("id", "note"), [(1, ""), (2, "")]) == "id  note\n 1\n 2"


@pytest.mark.parametrize("seed", range(20))
def test_a_folded_sentence_has_its_words_in_order(seed: int) -> None:
    dice = Random(seed)
    width, text = dice.randint(30, 60), words(dice, 20)
    folded = fold(text, width)

    assert folded.split() == text.split()
    assert all(cells(line) <= width for line in folded.splitlines())


def test_a_folded_value_continues_below_itself() -> None:
    assert fold("  error   the provider answered 503, try again later", 30) == (
        "  error   the provider\n          answered 503, try\n          again later"
    )


@pytest.mark.parametrize("text", ["東京東京東京", "abcdefghijkl"])
def test_what_is_cut_says_so(text: str) -> None:
    assert cut(text, 7).endswith("…")
    assert cells(cut(text, 7)) <= 7
    assert cut(text, 12) == text
