"""The HTTP client of a provider: posts JSON, reads event streams, makes the errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from harn.error_text import error_text
from harn.errors import HarnError, ModelError
from harn.masking import MASK
from harn.option_checks import LARGEST

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A number of tokens, as a provider counts them."""

RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes after which a retry of the same call may succeed."""
Sending = Callable[[], Awaitable[None]]
LARGEST_BODY = 64 * 1024 * 1024
LONGEST_REASON = 300
"""Characters that a message has of a provider's own."""


class Secret:
    """An API key that no repr, log or error shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself, for the header that needs it."""
        return self._value

    def hide_in(self, text: str) -> str:
        """Return *text* without the key."""
        return text.replace(self._value, MASK) if self._value else text

    def __repr__(self) -> str:
        return "Secret(***)"


class Wire:
    """The HTTP connections to one provider."""

    def __init__(
        self, provider: str, base_url: str, headers: Mapping[str, str], key: Secret, timeout: float
    ) -> None:
        try:
            import httpx2
        except ImportError:
            raise HarnError(
                "calling models needs httpx2: pip install 'harn-runtime[llm]'"
            ) from None
        self.provider = provider
        self._key = key
        self._client = httpx2.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers=dict(headers),
            timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
            follow_redirects=False,
        )

    async def post(
        self, path: str, body: Mapping[str, Any], sending: Sending | None = None
    ) -> tuple[Any, dict[str, str]]:
        """Post *body* and return the decoded answer with its headers.

        *sending* is awaited when there is a connection, just before the request is sent.
        Cancelling closes the connection.
        """
        with self._failures():
            response = await self._client.post(
                path,
                content=self._encoded(body),
                headers=_JSON,
                extensions=_before_sending(sending),
            )
        self._check(response.status_code, response.headers, response.content)
        return self._decoded(response.content), dict(response.headers)

    async def events(
        self, path: str, body: Mapping[str, Any], sending: Sending | None = None
    ) -> AsyncIterator[tuple[dict[str, str], str]]:
        """Post *body* and yield the data of each server-sent event, with the headers.

        *sending* is awaited when there is a connection, just before the request is sent.
        Closing the iterator closes the connection.
        """
        import httpx2

        with self._failures():
            async with self._client.stream(
                "POST",
                path,
                content=self._encoded(body),
                headers=_JSON,
                extensions=_before_sending(sending),
            ) as response:
                if response.status_code >= 400:
                    self._check(response.status_code, response.headers, await response.aread())
                headers = dict(response.headers)
                async for event in httpx2.EventSource(response):
                    yield headers, event.data

    def decoded(self, data: str) -> Any:
        """Decode the JSON *data* of one event."""
        return self._decoded(data.encode())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def error(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> ModelError:
        """Return the error of a failed call, without the key in its message."""
        return ModelError(
            self._key.hide_in(f"{self.provider}: {message}"),
            provider=self.provider,
            status_code=status,
            retryable=retryable,
            headers=headers,
        )

    def read(self, answer: Any, form: type[T]) -> T:
        """Return *answer* as *form*; raise `ModelError` that names a part of another type."""
        try:
            return msgspec.convert(answer, form)
        except msgspec.ValidationError as error:
            raise self.error(
                f"the answer has an unexpected form ({error})", retryable=True
            ) from None

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except httpx2.TimeoutException as error:
            raise self.error(
                f"no answer in time ({type(error).__name__})", retryable=True
            ) from None
        except (httpx2.TransportError, httpx2.SSEError) as error:
            reason = error_text(error, LONGEST_REASON)
            raise self.error(f"connection failed ({reason})", retryable=True) from None

    def _check(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        if status >= 400:
            raise self.error(
                f"HTTP {status}: {_message(content)}",
                status=status,
                retryable=status in RETRYABLE,
                headers=dict(headers),
            )

    def _encoded(self, body: Mapping[str, Any]) -> bytes:
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            reason = error_text(error, LONGEST_REASON)
            raise self.error(f"the request cannot be written as JSON ({reason})") from None

    def _decoded(self, content: bytes) -> Any:
        if len(content) > LARGEST_BODY:
            raise self.error(
                f"the answer has {len(content):,} bytes; at most {LARGEST_BODY:,} are read"
            )
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self.error(f"the answer is not JSON ({error})", retryable=True) from None


_JSON = {"content-type": "application/json"}


def _before_sending(sending: Sending | None) -> dict[str, Any] | None:
    """Return the httpx extension that awaits *sending* when a request has its connection."""
    if sending is None:
        return None

    async def trace(event: str, _: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            await sending()

    return {"trace": trace}


def _message(content: bytes) -> str:
    """Return the provider's error message, shortened."""
    try:
        found = msgspec.json.decode(content)
        inner = found.get("error", found) if isinstance(found, dict) else found
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
    except (msgspec.DecodeError, RecursionError):
        text = content.decode("utf-8", "replace")
    shown = str(text).strip() or "no reason given"
    return shown if len(shown) <= LONGEST_REASON else f"{shown[: LONGEST_REASON - 3]}..."
