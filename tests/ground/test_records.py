"""Every record becomes a dict in the same way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from harn.records import Record, SparseRecord, fields_of


@dataclass(frozen=True, slots=True)
class Line(SparseRecord):
    text: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Record):
    number: int | None
    lines: tuple[Line, ...] = ()
    best: Line | None = None
    _reader: Any = field(default=None, repr=False)


class Packed(SparseRecord, msgspec.Struct, frozen=True):
    id: int
    payload: Any = None


def test_a_record_shows_every_field_even_one_without_a_value() -> None:
    assert Page(None).as_dict() == {"number": None, "lines": (), "best": None}


def test_a_sparse_record_leaves_out_what_is_none_and_only_that() -> None:
    assert Line("").as_dict() == {"text": ""}
    assert Packed(0, payload=[]).as_dict() == {"id": 0, "payload": []}


def test_records_inside_a_record_are_shown_their_own_way() -> None:
    page = Page(1, (Line("a"), Line("b", "new")), Line("c"))

    assert page.as_dict() == {
        "number": 1,
        "lines": [{"text": "a"}, {"text": "b", "note": "new"}],
        "best": {"text": "c"},
    }


def test_a_private_field_stays_private() -> None:
    assert "_reader" not in fields_of(Page(1, _reader=object()))


def test_a_payload_is_shown_as_it_is_and_not_copied() -> None:
    payload = [{"a": (1, 2)}]

    assert Packed(1, payload).as_dict()["payload"] is payload


def test_a_struct_that_is_a_record_has_no_dict_of_its_own() -> None:
    assert not hasattr(Packed(1), "__dict__")
    assert not hasattr(Line(""), "__dict__")
