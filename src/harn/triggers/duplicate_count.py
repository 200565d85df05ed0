"""How many repeated events this process has refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime


class Repetitions:
    """The count of a runtime: `runtime.service(Repetitions)`.

    A refused repetition is not written to the store, so only the process that refused it knows.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.refused: int = 0
