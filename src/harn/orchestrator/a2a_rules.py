"""What an A2A peer sends to an `a2a-push` hook, and the answer that the protocol defines. Pure.

A peer sends a JSON-RPC call, `SendMessage` of protocol 1.0 or `message/send` of 0.3, or a plain
JSON object: a push notification of a task that it runs for this service. The answer to a call is a
task whose id is the event's. The state of that task cannot be asked for later: other calls are
refused with the protocol's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from harn.ids import digest
from harn.naming import has_controls

PROVIDER = "a2a-push"
RECEIVED = "a2a.task.received"
NOTIFICATION_TOKEN = "x-a2a-notification-token"  # noqa: S105 - a header's name
"""The header of a push notification with the token that its receiver chose."""
LONGEST_ID = 300

BAD_REQUEST = -32600
NO_METHOD = -32601
BAD_PARAMS = -32602
NO_PUSH = -32003
NOT_OFFERED = -32004
BAD_VERSION = -32009

_VERSION = re.compile(r"(?:0\.3(?:\.[0-9]{1,9})?|1(?:\.[0-9]{1,9}){0,2})?", re.ASCII)
"""The supported versions. Without the header it is 0.3, as the protocol says."""
_STREAMS = frozenset(("SendStreamingMessage", "SubscribeToTask", "message/stream"))
_TASKS = frozenset(
    (
        *("GetTask", "ListTasks", "CancelTask", "GetExtendedAgentCard"),
        *("tasks/get", "tasks/list", "tasks/cancel", "tasks/resubscribe"),
        "agent/getAuthenticatedExtendedCard",
    )
)
_PUSH = re.compile(r"\w+TaskPushNotificationConfigs?|tasks/pushNotificationConfig/\w+", re.ASCII)


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal_of(payload: Any, version: str) -> dict[str, Any] | None:
    """Return the error for a call that is not accepted; None for everything else.

    *version* is the header `A2A-Version`.

    >>> refusal_of({"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}, "1.0")["error"]
    {'code': -32004, 'message': 'streaming is not offered here; call SendMessage'}
    """
    if isinstance(payload, Mapping) and "jsonrpc" not in payload:
        return None
    try:
        _check_call(payload, version)
    except _Refused as refused:
        return refused_call(payload, refused.code, str(refused))
    return None


def is_call(payload: Any) -> bool:
    """Tell whether *payload* is a JSON-RPC call rather than a notification."""
    return isinstance(payload, Mapping) and "jsonrpc" in payload


def refused_call(payload: Any, code: int, message: str) -> dict[str, Any]:
    """Return the error *code* as the answer to a call."""
    return {"jsonrpc": "2.0", "id": _id_of(payload), "error": {"code": code, "message": message}}


def answer_to(payload: Mapping[str, Any], event_id: str | None) -> dict[str, Any]:
    """Return the task that answers a call, in the format of the call's protocol version.

    Its state is submitted; without an event it is rejected: the trigger does not match the message.

    >>> call = {"id": 7, "method": "message/send", "params": {"message": {"messageId": "m"}}}
    >>> answer_to(call, "evt")["result"]["status"]
    {'state': 'submitted'}
    """
    message = payload["params"]["message"]
    state = "submitted" if event_id is not None else "rejected"
    id = event_id or digest("a2a", message["messageId"])  # the same if it is sent again
    task: dict[str, Any] = {"id": id, "contextId": message.get("contextId") or id}
    if payload.get("method") == "message/send":
        result = {**task, "kind": "task", "status": {"state": state}}
    else:
        result = {"task": {**task, "status": {"state": f"TASK_STATE_{state.upper()}"}}}
    return {"jsonrpc": "2.0", "id": _id_of(payload), "result": result}


def message_in(payload: Any) -> Mapping[str, Any] | None:
    """Return the message in a call or a notification, or None."""
    held = payload.get("params", payload) if isinstance(payload, Mapping) else None
    message = held.get("message") if isinstance(held, Mapping) else None
    return message if isinstance(message, Mapping) else None


def message_digest(message: Mapping[str, Any]) -> str:
    """Return the digest of a message: sent again, it has another JSON-RPC id but equal content."""
    return sha256(msgspec.json.encode(message, order="sorted")).hexdigest()


def _id_of(payload: Any) -> str | int | None:
    id = payload.get("id") if isinstance(payload, Mapping) else None
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def _check_call(payload: Any, version: str) -> None:
    if not isinstance(payload, Mapping):
        raise _Refused(BAD_REQUEST, "one JSON-RPC call is expected, not a batch")
    if payload["jsonrpc"] != "2.0" or not isinstance(payload.get("method"), str):
        raise _Refused(BAD_REQUEST, 'a call has "jsonrpc": "2.0" and a method')
    if not _VERSION.fullmatch(version.strip()):
        raise _Refused(BAD_VERSION, "only A2A versions 1.0 and 0.3 are supported")
    _check_method(payload["method"])
    params = payload.get("params")
    if not isinstance(params, Mapping) or not isinstance(params.get("message"), Mapping):
        raise _Refused(BAD_PARAMS, "params.message is missing")
    _check_message(params["message"], _is_part_0_3 if "/" in payload["method"] else _is_part)
    _check_configuration(params.get("configuration"))


def _check_method(method: str) -> None:
    if method in ("SendMessage", "message/send"):
        return
    if method in _STREAMS:
        raise _Refused(NOT_OFFERED, "streaming is not offered here; call SendMessage")
    if method in _TASKS:
        raise _Refused(NOT_OFFERED, "tasks cannot be read or cancelled here; call SendMessage")
    if _PUSH.fullmatch(method):
        raise _Refused(NO_PUSH, "push notifications are not sent from here")
    raise _Refused(NO_METHOD, "unknown method; call SendMessage")


def _check_message(message: Mapping[str, Any], is_part: Callable[[Any], bool]) -> None:
    for name in ("messageId", "contextId", "taskId"):
        id = message.get(name)
        if id is None and name != "messageId":
            continue
        if not isinstance(id, str) or len(id) > LONGEST_ID or has_controls(id):
            raise _Refused(
                BAD_PARAMS,
                f"params.message.{name}: text of at most {LONGEST_ID} characters, "
                "without control characters",
            )
    if not message["messageId"]:
        raise _Refused(BAD_PARAMS, "params.message.messageId is empty")
    parts = message.get("parts")
    if not isinstance(parts, list) or not parts:
        raise _Refused(BAD_PARAMS, "params.message.parts: a list of at least one part")
    for number, part in enumerate(parts):
        if not is_part(part):
            raise _Refused(BAD_PARAMS, f"params.message.parts[{number}] is not a part of a message")


def _is_part(part: Any) -> bool:
    """Tell whether *part* has exactly one content: text, raw, url or data."""
    if not isinstance(part, Mapping):
        return False
    texts = [part[name] for name in ("text", "raw", "url") if part.get(name) is not None]
    return len(texts) + ("data" in part) == 1 and all(isinstance(text, str) for text in texts)


def _is_part_0_3(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    if part.get("kind") == "text":
        return isinstance(part.get("text"), str)
    kind = part.get("kind")
    return kind in ("file", "data") and isinstance(part.get(kind), Mapping)


def _check_configuration(configuration: Any) -> None:
    if configuration is None:
        return
    if not isinstance(configuration, Mapping):
        raise _Refused(BAD_PARAMS, "params.configuration: an object")
    for name in ("taskPushNotificationConfig", "pushNotificationConfig"):
        if configuration.get(name) is not None:
            raise _Refused(NO_PUSH, "push notifications are not sent from here")
