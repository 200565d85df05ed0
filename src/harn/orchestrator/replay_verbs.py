"""The verbs about what was dispatched before: replay an event or a dead letter, or discard one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harn.errors import HarnError
from harn.orchestrator.caused_work import Finishing
from harn.orchestrator.verb_options import DiscardLetter, Replay, ReplayLetter, Tell
from harn.pools import CausedOutcome
from harn.triggers import DeadLetters, DispatchHandle, NotFound, compare_mapping

if TYPE_CHECKING:
    from harn.orchestrator.service import Service


async def replay(service: Service, options: Replay, tell: Tell) -> dict[str, Any]:
    """Dispatch an event again. Cancelling may leave it dispatched."""
    finish = Finishing(service.runtime, options.work_within, tell)
    letters = service.runtime.service(DeadLetters)
    handles = await letters.replay_event(options.event, options.trigger, finish)
    if not handles:
        raise NotFound(f"event {options.event} did not go to trigger {options.trigger!r}")
    return await _replayed(service, handles, finish.seen)


async def replay_letter(service: Service, options: ReplayLetter, tell: Tell) -> dict[str, Any]:
    """Dispatch a dead letter again. Cancelling may leave it dispatched."""
    finish = Finishing(service.runtime, options.work_within, tell)
    letters = service.runtime.service(DeadLetters)
    await letters.get(options.letter)
    try:
        handle = await letters.replay(options.letter, finish)
    except NotFound as error:  # the letter is there; its trigger is not, in this process
        raise HarnError(f"dead letter {options.letter} cannot be replayed here: {error}") from None
    return await _replayed(service, [handle], finish.seen)


async def _replayed(
    service: Service, handles: Sequence[DispatchHandle], done: Sequence[CausedOutcome]
) -> dict[str, Any]:
    shown = []
    for handle in handles:
        mapping = await compare_mapping(service.runtime, handle)
        shown.append({**handle.as_dict(), **({"mapping": mapping} if mapping else {})})
    return {"handles": shown, "work": [each.as_dict() for each in done]}


async def discard_letter(service: Service, options: DiscardLetter, tell: Tell) -> dict[str, Any]:
    """Discard a dead letter. Cancelling this may leave it discarded."""
    letters = service.runtime.service(DeadLetters)
    return {"discarded": await letters.discard(options.letter, options.reason)}
