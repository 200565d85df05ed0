"""Whether the pools of a runtime begin with what their journals hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime


class Backlogs:
    """The choice of a runtime: `runtime.service(Backlogs)`."""

    def __init__(self, runtime: Runtime) -> None:
        self.stay: bool = False
        """Whether tasks of an earlier process stay in their journals, as in a command that ends
        soon."""
