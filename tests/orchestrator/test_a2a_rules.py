"""What an `a2a-push` hook makes of calls, well formed and not, and what its agent card shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harn import ManifestError
from harn.orchestrator import Hook, Key, read_manifest
from harn.orchestrator.a2a_rules import answer_to, refusal_of
from harn.orchestrator.agent_card import WELL_KNOWN, CardOptions, card_at
from tests.orchestrator.served import site

MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
AGENT = {"authorization": "Bearer key of acme 12345"}
AGENTS = Hook("on-agent", "/a2a", "a2a-push", "bearer", (Key(b"k" * 16, "acme"),))


def call(method: str = "SendMessage", **changed: Any) -> dict[str, Any]:
    params = {"message": {**MESSAGE, **changed}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def code_of(payload: Any, version: str = "1.0") -> int | None:
    refusal = refusal_of(payload, version)
    return None if refusal is None else refusal["error"]["code"]


@pytest.mark.parametrize(
    "payload",
    [
        call(),
        call(parts=[{"raw": "AAE="}, {"url": "https://x/"}, {"data": None}, {"data": {"n": 1}}]),
        call("message/send", parts=[{"kind": "text", "text": "hi"}]),
        call("message/send", parts=[{"kind": "data", "data": {}}, {"kind": "file", "file": {}}]),
        call(contextId="c", taskId=None),
        {"statusUpdate": {"taskId": "t"}},
        {},
    ],
)
def test_a_message_and_a_notification_are_taken_in(payload: Any) -> None:
    assert refusal_of(payload, "1.0") is None


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ([call()], -32600),
        ([], -32600),
        (7, -32600),
        (None, -32600),
        ("SendMessage", -32600),
        ({**call(), "jsonrpc": "1.0"}, -32600),
        ({**call(), "jsonrpc": 2}, -32600),
        ({**call(), "method": None}, -32600),
        ({**call(), "method": ["SendMessage"]}, -32600),
        (call("sendmessage"), -32601),
        (call(""), -32601),
        (call("message/stream"), -32004),
        (call("tasks/get"), -32004),
        (call("DeleteTaskPushNotificationConfig"), -32003),
        (call("tasks/pushNotificationConfig/set"), -32003),
        ({**call(), "params": None}, -32602),
        ({**call(), "params": [MESSAGE]}, -32602),
        ({**call(), "params": {"message": "hi"}}, -32602),
        ({**call(), "params": {"message": MESSAGE, "configuration": 1}}, -32602),
        (call(messageId=None), -32602),
        (call(messageId=""), -32602),
        (call(messageId=17), -32602),
        (call(messageId="m" * 1_000_000), -32602),
        (call(messageId="m\u2028"), -32602),
        (call(contextId={"$ne": ""}), -32602),
        (call(parts=None), -32602),
        (call(parts=[]), -32602),
        (call(parts={"text": "hi"}), -32602),
        (call(parts=["hi"]), -32602),
        (call(parts=[{"text": 1}]), -32602),
        (call(parts=[{"text": None}]), -32602),
        (call(parts=[{"text": "hi", "url": "https://x/"}]), -32602),
        (call(parts=[{"text": "hi"}, {"kind": "text"}]), -32602),
        (call("message/send", parts=[{"text": "hi"}]), -32602),
        (call("message/send", parts=[{"kind": ["text"], "text": "hi"}]), -32602),
        (call("message/send", parts=[{"kind": "file", "file": "x"}]), -32602),
    ],
    ids=range(36),
)
def test_a_call_that_is_not_understood_has_its_own_error(payload: Any, code: int) -> None:
    assert code_of(payload) == code


@pytest.mark.parametrize(
    ("version", "code"),
    [
        *((version, None) for version in ("", "0.3", "0.3.0", "1", "1.0", "1.0.7", "1.2", " 1.0 ")),
        *((version, -32009) for version in ("0.2", "2.0", "10", "1.0, 1.0", "1.x", "v1", "١.0")),
    ],
)
def test_versions_1_and_0_3_are_understood(version: str, code: int | None) -> None:
    assert code_of(call(), version) == code


@pytest.mark.parametrize(
    ("id", "echoed"), [("a", "a"), (7, 7), (None, None), (True, None), ({"a": 1}, None), ([], None)]
)
def test_only_an_id_that_json_rpc_knows_is_sent_back(id: Any, echoed: Any) -> None:
    assert answer_to({**call(), "id": id}, "evt")["id"] == echoed
    assert refusal_of({**call("Evil"), "id": id}, "")["id"] == echoed  # type: ignore[index]


@pytest.mark.parametrize("depth", [100, 900, 940, 960, 980, 990, 1000, 5000, 200_000])
async def test_a_message_of_any_depth_is_taken_in_or_refused(depth: int) -> None:
    nested = '{"data": ' + "[" * depth + "]" * depth + "}"
    body = json.dumps(call(parts=[{"data": "NESTED"}])).replace('{"data": "NESTED"}', nested)
    async with site() as served:
        answer = await served.client.post("/a2a", content=body, headers=AGENT)

    assert answer.status_code in (200, 400), answer.text


async def test_a_resend_in_another_order_of_keys_is_a_repetition() -> None:
    async with site() as served:
        answers = []
        for id, message in ((1, MESSAGE), ("two", dict(reversed(MESSAGE.items())))):
            sent = {"params": {"message": message}, **call(), "id": id}
            sent["params"] = {"message": message}
            answers.append((await served.client.post("/a2a", json=sent, headers=AGENT)).json())
        await served.settled()

    assert [answer["id"] for answer in answers] == [1, "two"]
    assert answers[0]["result"] == answers[1]["result"]
    assert len(served.seen) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a2a-notification-token": ""},
        {"x-a2a-notification-token": "Bearer key of acme 12345"},
        {"authorization": "key of acme 12345"},
        [("x-a2a-notification-token", "key of acme 12345")] * 2,
    ],
)
async def test_a_notification_token_proves_only_as_itself(headers: Any) -> None:
    async with site() as served:
        answer = await served.client.post("/a2a", json=call(), headers=headers)

    assert answer.status_code == 401


async def test_a_notification_token_opens_no_webhook() -> None:
    """It is a bearer key in another header: where signatures are asked for, it is nothing."""
    headers = {"x-a2a-notification-token": "the new signing key"}
    async with site() as served:
        answer = await served.client.post("/hooks/github", json={}, headers=headers)

    assert answer.status_code == 401


def test_the_card_tells_paths_and_what_the_manifest_publishes_and_nothing_else() -> None:
    hooks = [
        Hook("internal-review", "/agents/review", "a2a-push", "bearer", (Key(b"s3cret", "acme"),)),
        Hook("signed", "/signed", "a2a-push", "standard", (Key(b"s3cret"),)),
        Hook("on-github", "/hooks/github", "github", "github", (Key(b"s3cret"),)),
    ]
    options = CardOptions("Reviews", "Reviews changes.", "7", "https://agents.example/")

    card = card_at(WELL_KNOWN, hooks, options, "http://10.0.0.7:8080")

    assert card is not None
    assert (card["name"], card["version"]) == ("Reviews", "7")
    assert card["url"] == "https://agents.example/agents/review"
    assert [skill["id"] for skill in card["skills"]] == ["agents/review"]
    shown = json.dumps(card)
    for hidden in ("internal", "s3cret", "acme", "signed", "github", "10.0.0.7"):
        assert hidden not in shown


def test_each_hook_has_a_card_of_its_own_below_its_path() -> None:
    other = Hook("other", "/other/", "a2a-push", "bearer", (Key(b"k" * 16),))
    hooks, options, origin = [AGENTS, other], CardOptions(), "http://127.0.0.1:1"

    cards = [
        card_at(path, hooks, options, origin)
        for path in (WELL_KNOWN, f"/a2a{WELL_KNOWN}", f"/other{WELL_KNOWN}", f"/x{WELL_KNOWN}")
    ]

    urls = [
        None if card is None else [each["url"] for each in card["supportedInterfaces"][::2]]
        for card in cards
    ]
    assert urls == [
        [f"{origin}/a2a", f"{origin}/other/"],
        [f"{origin}/a2a"],
        [f"{origin}/other/"],
        None,
    ]


@pytest.mark.parametrize("host", ["", "evil/x", "a b", "u:p@h", "h:99999", "<script>", "127.1"])
async def test_a_host_that_is_none_gets_no_card(host: str) -> None:
    async with site() as served:
        odd = await served.client.get(WELL_KNOWN, headers={"host": host})
        good = await served.client.get(WELL_KNOWN)

    assert odd.status_code == 400
    assert good.json()["url"] == f"http://127.0.0.1:{served.port}/a2a"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 401), ("PUT", 404)])
async def test_the_card_is_only_read(method: str, status: int) -> None:
    async with site() as served:
        answer = await served.client.request(method, WELL_KNOWN)

    assert answer.status_code == status


def test_a_manifest_says_what_the_card_publishes(tmp_path: Path) -> None:
    (tmp_path / "harn.toml").write_text(
        '[a2a.card]\nname = "Reviews"\nurl = "https://agents.example"\n'
    )

    card = read_manifest(tmp_path).card

    assert card == CardOptions(name="Reviews", url="https://agents.example")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a2a]\ncard = 1\n", "harn.toml:2: a2a.card: a table"),
        ('[a2a.card]\nnmae = "x"\n', "harn.toml:2: a2a.card.nmae: no such key; did you mean"),
        ("[a2a.card]\nname = 7\n", "harn.toml:2: a2a.card.name: .*printable"),
        ('[a2a.card]\nname = "a\\u0000b"\n', "a2a.card.name: .*printable"),
        ('[a2a.card]\nurl = "agents.example"\n', r"a2a.card.url: .*http\(s\)://host"),
        ('[a2a.card]\nurl = "https://h/path"\n', "a2a.card.url: .*without a path"),
    ],
)
def test_a_card_that_cannot_be_published_is_a_mistake_of_the_manifest(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "harn.toml").write_text(text)

    with pytest.raises(ManifestError, match=said):
        read_manifest(tmp_path)
