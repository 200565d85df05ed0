"""The formats that the body of a request to a trigger may have."""

from __future__ import annotations

from typing import Literal, get_args

BodyFormat = Literal["json", "form"]
BODY_FORMATS: tuple[BodyFormat, ...] = get_args(BodyFormat)
