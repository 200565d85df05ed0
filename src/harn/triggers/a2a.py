"""`a2a://host/path`: an event goes to a remote agent as an A2A message; its answer comes back.

The call is JSON-RPC `SendMessage` of the protocol's version 1.0, with the event as a data part. It
goes out over HTTPS; `a2a+http://` is for hosts that the operator lists under `allow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn.errors import InvalidOption, TriggerError
from harn.ids import digest
from harn.triggers.guard import Allowed, check_allowed, read_url
from harn.triggers.handlers import Call, NotRetryable
from harn.triggers.outbound import Response, post

TIMEOUT = 30.0
VERSION = "1.0"
_AGAIN = frozenset((408, 425, 429))


class A2aTarget:
    """A remote agent; *token* is sent as a bearer token and never shown."""

    kind = "a2a"
    identity = ""

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
        self.url = read_url(f"{'http' if scheme == 'a2a+http' else 'https'}://{rest}", "handler")
        self.uri = uri
        self._allow = None if allow is None else check_allowed(allow)
        self._token = token
        self._timeout = timeout

    def configured(self, allow: Sequence[str], token: str | None) -> A2aTarget:
        """Return this target with what a manifest says of it."""
        return A2aTarget(self.uri, allow=allow, token=token, timeout=self._timeout)

    async def deliver(self, call: Call) -> Any:
        """Send the event; the receipt is the agent's task or message.

        Cancelling closes the connection; the agent may have received the event.
        """
        headers = {"Content-Type": "application/json", "A2A-Version": VERSION}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = {
            "jsonrpc": "2.0",
            "id": call.delivery,
            "method": "SendMessage",
            "params": {"message": message_of(call)},
        }
        body = msgspec.json.encode(request)
        allowed = self._allow
        if allowed is None:
            allowed = check_allowed(call.runtime.settings.a2a_allow)
        if self.url.scheme == "http" and not _is_listed(allowed):
            raise NotRetryable(f"{self.uri}: without TLS only hosts under `allow` are called")
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


def _is_listed(allowed: Allowed) -> bool:
    return bool(allowed.hosts or allowed.networks)


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
    if found.get("error"):
        error = found["error"] if isinstance(found["error"], dict) else {}
        raise TriggerError(f"{uri} refused: {str(error.get('message', 'an error'))[:500]}")
    return found["result"]
