"""`a2a://host/path`: send an event to a remote agent as an A2A message, and read its answer.

The call is JSON-RPC `SendMessage` of the protocol's version 1.0, with the event as a data part. It
uses HTTPS; `a2a+http://` is for hosts that the operator lists with that scheme.

The allowed hosts and the token are looked up at every call. So a retry after a reload of the
manifest uses the rights of the new manifest, also for an event that was accepted before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import InvalidOption, TriggerError
from harn.ids import digest
from harn.triggers.allowed_hosts import Allowed, Url, check_allowed, read_url
from harn.triggers.delivery import Call
from harn.triggers.http_client import Response, post
from harn.triggers.targets import NotRetryable

if TYPE_CHECKING:
    from harn.runtime import Runtime

TIMEOUT = 30.0
VERSION = "1.0"
_AGAIN = frozenset((408, 425, 429))
_FOR_GOOD = frozenset(
    (-32700, *range(-32602, -32599), *range(-32005, -32000), *range(-32009, -32006))
)
"""Error codes of JSON-RPC and A2A that a retry of the same message would get again."""
_ENDS = {"failed": TriggerError, "rejected": NotRetryable, "canceled": NotRetryable}
"""Final states of a task that did not do its work; only a `failed` one is worth a retry."""


class A2aRights:
    """The hosts and tokens that the current manifest allows: `runtime.service(A2aRights)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._always = runtime.settings.a2a_allow
        self._tokens: Mapping[tuple[str, str], str] = {}
        self.allowed: Allowed = check_allowed(self._always)

    def replace(self, allow: Sequence[str], tokens: Mapping[tuple[str, str], str]) -> None:
        """Replace the list of hosts and the *tokens*, which are by trigger id and URI."""
        self.allowed = check_allowed((*allow, *self._always))
        self._tokens = tokens

    def token(self, trigger_id: str, uri: str) -> str | None:
        """Return the token of *trigger_id* for *uri*; a token for another pair is never used."""
        return self._tokens.get((trigger_id, uri))


class A2aTarget:
    """A remote agent; *token* is sent as a bearer token and never shown.

    Without *allow* or *token*, each call asks `A2aRights` for them.
    """

    kind = "a2a"

    def __init__(
        self,
        uri: str,
        *,
        allow: Sequence[str] | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        scheme, _, rest = uri.partition("://")
        if scheme not in ("a2a", "a2a+http") or not rest:
            raise InvalidOption("handler", uri, '"a2a://host/path"')
        web = "http" if scheme == "a2a+http" else "https"
        self.url: Url = read_url(f"{web}://{rest}", "handler")
        self.uri = uri
        self._allow = None if allow is None else check_allowed(allow)
        self._token = token
        self._timeout = timeout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, A2aTarget) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self.uri)

    def _value(self) -> tuple[Any, ...]:
        return self.uri, self._allow, self._token, self._timeout

    async def deliver(self, call: Call) -> Any:
        """Send the event; the receipt is the agent's task or message.

        A task that the agent says has failed, was rejected or was cancelled is a failed attempt.
        Cancelling closes the connection; the agent may have received the event.
        """
        rights = call.runtime.service(A2aRights)
        headers = {"Content-Type": "application/json", "A2A-Version": VERSION}
        if token := self._token or rights.token(call.binding_id, self.uri):
            headers["Authorization"] = f"Bearer {token}"
        request = {
            "jsonrpc": "2.0",
            "id": call.delivery,
            "method": "SendMessage",
            "params": {"message": message_of(call)},
        }
        body = msgspec.json.encode(request)
        allowed = rights.allowed if self._allow is None else self._allow
        answer = await post(self.url, body, headers, allowed=allowed, timeout=self._timeout)
        return {"status": answer.status, "result": _result(self.uri, answer)}


def message_of(call: Call) -> dict[str, Any]:
    """Return the A2A message for an event; a repetition has the same message id."""
    event = call.event.as_dict()
    event.pop("headers", None)
    return {
        "messageId": digest("a2a", call.delivery),
        "role": "ROLE_USER",
        "parts": [{"data": event, "mediaType": "application/json"}],
        "metadata": {"trigger_id": call.binding_id, "event_id": call.event.id},
    }


def _result(uri: str, answer: Response) -> Any:
    if answer.status in _AGAIN or answer.status >= 500:
        raise TriggerError(f"{uri} answered {answer.status}")
    if answer.status != 200:
        raise NotRetryable(f"{uri} answered {answer.status}")
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        raise TriggerError(f"{uri} answered something that is not JSON") from None
    if not isinstance(found, dict) or ("result" not in found and "error" not in found):
        raise TriggerError(f"{uri} answered something that is not JSON-RPC")
    if found.get("error") or "result" not in found:
        error = found["error"] if isinstance(found["error"], dict) else {}
        kind = NotRetryable if error.get("code") in _FOR_GOOD else TriggerError
        raise kind(f"{uri} refused: {str(error.get('message', 'an error'))[:500]}")
    _check_task(uri, found["result"])
    return found["result"]


def _check_task(uri: str, result: Any) -> None:
    """Raise if *result* is a task, of protocol 1.0 or 0.3, that ended without its work done."""
    task = result.get("task", result) if isinstance(result, dict) else None
    status = task.get("status") if isinstance(task, dict) else None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        return
    state = status["state"].removeprefix("TASK_STATE_").lower()
    if state in _ENDS:
        raise _ENDS[state](f"the task of {uri} ended as {state}{_said(status.get('message'))}")


def _said(message: Any) -> str:
    """Return the text of a task's last message, to append to its state."""
    parts = message.get("parts") if isinstance(message, dict) else None
    texts = [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    return f": {' '.join(texts)[:500]}" if texts else ""
