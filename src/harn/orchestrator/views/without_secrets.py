"""Documents without secrets: by the names of their fields, by known values, and in URLs."""

from __future__ import annotations

from typing import Any

from harn.masking import mask_fields, mask_text
from harn.runtime import Runtime
from harn.triggers import Secrets


def masked(runtime: Runtime, value: Any) -> Any:
    """Return *value*, which is JSON, without what must not be shown to an operator.

    Masked are the fields whose names are those of secrets (`HARN_MASKED_NAMES` adds some), the
    values of the manifest's secrets wherever they occur, and the passwords in URLs.
    """
    secrets = runtime.service(Secrets)
    return mask_fields(
        value, runtime.settings.masked_names, lambda text: secrets.mask(mask_text(text))
    )
