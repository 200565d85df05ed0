"""litellm: its errors and answers say how long the provider asks callers to wait."""

from __future__ import annotations

from typing import Any

import pytest

from harn import Runtime, llm_slot
from harn.ratelimit.retry_after import is_retryable, wait_in

litellm: Any = pytest.importorskip("litellm", reason="needs the group `interop`")
httpx: Any = pytest.importorskip("httpx", reason="needs the group `interop`")


def refused(headers: dict[str, str]) -> Any:
    request = httpx.Request("POST", "http://localhost/v1")
    response = httpx.Response(429, headers=headers, request=request)
    return litellm.RateLimitError("too many", llm_provider="openai", model="gpt", response=response)


@pytest.mark.parametrize("name", ["retry-after", "llm_provider-retry-after"])
def test_the_wait_of_a_refusal_is_read(name: str) -> None:
    error = refused({name: "7"})

    assert wait_in(error, 0) == 7.0
    assert is_retryable(error)


async def test_the_headers_that_an_answer_passes_on_are_read(runtime: Runtime) -> None:
    headers = litellm.utils.process_response_headers(
        httpx.Headers({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9s"})
    )
    assert any(name.startswith("llm_provider-") for name in headers)

    async with llm_slot("openai", "gpt") as slot:
        assert await slot.feedback(headers, status=200) == 9.0
