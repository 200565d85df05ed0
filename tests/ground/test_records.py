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
    title: str = ""
    _reader: Any = field(default=None, repr=False)


class Packed(SparseRecord, msgspec.Struct, frozen=True):
    id: int
    payload: Any = None


def test_a_record_shows_every_field_even_one_without_a_value() -> None:
    assert Page(None).as_dict() == {"number": None, "title": ""}


def test_a_sparse_record_leaves_out_what_is_none_and_only_that() -> None:
    assert Line("").as_dict() == {"text": ""}
    assert Packed(0, payload=[]).as_dict() == {"id": 0, "payload": []}


def test_a_record_inside_a_payload_stays_what_it_is() -> None:
    inner = Line("a")

    assert Packed(1, inner).as_dict()["payload"] is inner


def test_a_private_field_stays_private() -> None:
    assert "_reader" not in fields_of(Page(1, _reader=object()))


def test_a_payload_is_shown_as_it_is_and_not_copied() -> None:
    payload = [{"a": (1, 2)}]

    assert Packed(1, payload).as_dict()["payload"] is payload


def test_a_struct_that_is_a_record_has_no_dict_of_its_own() -> None:
    assert not hasattr(Packed(1), "__dict__")
    assert not hasattr(Line(""), "__dict__")
