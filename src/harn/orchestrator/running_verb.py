"""A verb that runs in a service, and the audit of what an operator did."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from harn.error_text import message_of
from harn.errors import HarnError
from harn.orchestrator.admin_verbs import Verb
from harn.orchestrator.verb_options import Options
from harn.orchestrator.views import masked
from harn.teardown import retrieve
from harn.topics import OPERATORS_AUDIT

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

logger: logging.Logger = logging.getLogger("harn.orchestrator")


class ActedBy(msgspec.Struct, frozen=True):
    """Who asked for a verb: a key by its name, how it was shown, and from which address."""

    who: str
    via: str
    address: str


class Running:
    """A running verb. It continues if its caller disconnects.

    `said` is its latest line of progress. What an operator did is in the audit before the task
    ends, whether it worked or not.
    """

    def __init__(
        self, service: Service, verb: Verb, options: Options, by: ActedBy | None = None
    ) -> None:
        self.said: str = ""
        self._runtime = service.runtime
        self.task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(
            self._run(service, verb, options, by)
        )
        self.task.add_done_callback(retrieve)  # the caller may have disconnected
        service.runtime.own(self.task)

    async def _run(
        self, service: Service, verb: Verb, options: Options, by: ActedBy | None
    ) -> dict[str, Any]:
        try:
            document = await verb.run(service, options, self._tell)
        except asyncio.CancelledError:
            await self._note(verb, options, by, "the service stopped before this ended")
            raise
        except Exception as error:
            await self._note(verb, options, by, message_of(error))
            raise
        await self._note(verb, options, by, None)
        return document

    async def _note(
        self, verb: Verb, options: Options, by: ActedBy | None, error: str | None
    ) -> None:
        """Write the act to the audit; without its payload, which may be anything."""
        if by is None:
            return
        given = msgspec.structs.asdict(options)
        given.pop("payload", None)
        record = {
            "who": by.who,
            "via": by.via,
            "address": by.address,
            "verb": verb.name,
            "options": given,
            "ok": error is None,
            "error": error,
        }
        try:
            shown = masked(self._runtime, record)
            await self._runtime.event_log.emit(OPERATORS_AUDIT, "operator_acted", shown)
        except HarnError as failed:
            logger.warning("an operator's act could not be audited: %s", failed)

    def _tell(self, line: str) -> None:
        self.said = line
