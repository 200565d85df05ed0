"""Whether the pools of a runtime continue what their journals hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime


class Backlogs:
    """The choice of a runtime: `runtime.service(Backlogs)`."""

    def __init__(self, runtime: Runtime) -> None:
        self.are_left: bool = False
        """Whether the tasks of earlier processes stay in their journals: for a command, which ends
        too soon to run them."""
