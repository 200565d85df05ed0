"""Independent peers: `standardwebhooks` signs for us and checks us, `a2a-sdk` talks with us.

They are in the dependency group `interop`; without them these tests are not collected.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest

from harn.triggers import Genuine, sign, verify

standardwebhooks = pytest.importorskip("standardwebhooks", reason="needs the group `interop`")

SECRET = b"0123456789abcdef0123456789abcdef"


def test_what_standardwebhooks_signs_is_genuine_to_us() -> None:
    peer = standardwebhooks.Webhook(base64.b64encode(SECRET).decode())
    body = json.dumps({"type": "invoice.paid", "n": 1})
    now = datetime.now(UTC)
    headers = {
        "webhook-id": ["msg_1"],
        "webhook-timestamp": [str(int(now.timestamp()))],
        "webhook-signature": [peer.sign("msg_1", now, body)],
    }

    found = verify("standard", [SECRET], headers, body.encode(), now.timestamp())

    assert isinstance(found, Genuine)
    assert found.delivery == "id:msg_1"


def test_what_we_sign_is_genuine_to_standardwebhooks() -> None:
    peer = standardwebhooks.Webhook(base64.b64encode(SECRET).decode())
    body = b'{"type":"invoice.paid"}'
    headers = sign("standard", SECRET, body, int(datetime.now(UTC).timestamp()), "msg_2")

    assert peer.verify(body, headers) == {"type": "invoice.paid"}
    with pytest.raises(standardwebhooks.webhooks.WebhookVerificationError):
        peer.verify(body + b" ", headers)
