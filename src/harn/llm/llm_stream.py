"""A model's answer as a channel of pieces; closing the channel closes the connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, cast

from harn.current import current_runtime
from harn.errors import ChannelClosed
from harn.llm.call import Prompt, make_request
from harn.llm.messages import Delta, ModelRequest, Usage
from harn.llm.provider import BYTES_PER_TOKEN
from harn.llm.registry import Models, Route
from harn.llm.telemetry import observed
from harn.ratelimit import llm_slot
from harn.sync import Channel
from harn.tasks import spawn

BUFFERED = 64
"""Pieces that are buffered for the reader; beyond that, the connection is not read."""


class LlmStream(Channel[str]):
    """The channel that `llm_stream` returns; an error of the call is raised after its pieces."""

    __slots__ = ("_failure",)

    def __init__(self, name: str) -> None:
        super().__init__(name, BUFFERED)
        self._failure: BaseException | None = None

    async def receive(self) -> str:
        """Take the next piece; at the end raise `ChannelClosed`, or the error of the call.

        A cancelled receive takes no piece.
        """
        try:
            return await super().receive()
        except ChannelClosed:
            if self._failure is not None:
                raise self._failure from None
            raise

    def __aiter__(self) -> AsyncIterator[str]:  # type: ignore[override]
        return _Pieces(self)


class _Pieces:
    """The iterator of one loop over a stream; the end of the loop closes the stream."""

    def __init__(self, stream: LlmStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        try:
            return await self._stream.receive()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def __del__(self) -> None:
        # `break` calls no method of the iterator; it only drops the last reference to it.
        self._stream.close()


def llm_stream(
    prompt: Prompt,
    system: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    max_tokens: int = 1024,
    temperature: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> LlmStream:
    """Call a model and return a channel of the pieces of its answer.

    Leaving the loop over it, or `close()`, closes the connection and settles the tokens used so
    far. An error is raised after the pieces that arrived before it. A stream is not retried.

    >>> import asyncio
    >>> from harn import llm_provider
    >>> from harn.llm.http import Secret
    >>> from harn.llm.openai import OpenAICompatible
    >>> from harn.testing import fresh_runtime
    >>> from harn.testing.fake_provider import FakeModels, Say
    >>> async def main() -> str:
    ...     async with fresh_runtime(), FakeModels([Say("Paris, on the Seine")]) as models:
    ...         client = OpenAICompatible("local", models.openai_url, Secret("no key"))
    ...         llm_provider("local", client, default_model="small")
    ...         pieces = [piece async for piece in llm_stream("What is the capital of France?")]
    ...         await client.aclose()
    ...         return "".join(pieces)
    >>> asyncio.run(main())
    'Paris, on the Seine'
    """
    route = current_runtime().service(Models).route(provider, model)
    request = make_request(
        route, prompt, system, max_tokens=max_tokens, temperature=temperature, extra=extra
    )
    pieces = LlmStream(f"llm:{route.provider}")
    spawn(_pump, route, request, pieces, name="llm stream")
    return pieces


async def _pump(route: Route, request: ModelRequest, pieces: LlmStream) -> None:
    try:
        await _fill(route, request, pieces)
    except Exception as error:
        pieces._failure = error
    finally:
        pieces.close()


async def _fill(route: Route, request: ModelRequest, pieces: LlmStream) -> None:
    given = route.client.count_tokens(request)
    async with llm_slot(
        route.provider, route.model, input_tokens=given, output_tokens=request.max_tokens
    ) as slot:
        used: Usage | None = None
        made = 0
        try:
            with observed(route, request) as seen:
                sent = replace(request, sending=slot.sending)
                deltas = cast("AsyncGenerator[Delta, None]", route.client.stream(sent))
                async with contextlib.aclosing(deltas):
                    async for delta in deltas:
                        if delta.headers is not None:
                            await slot.feedback(delta.headers)
                        used = delta.usage or used
                        if delta.text:
                            made += len(delta.text.encode()) // BYTES_PER_TOKEN + 1
                            try:
                                await pieces.send(delta.text)
                            except ChannelClosed:
                                break  # the reader has closed the channel
                spent = _spent(used, given, made)
                seen.ended(spent, route.model, None)
        finally:
            spent = _spent(used, given, made)
            await slot.settle(
                input_tokens=spent.input_tokens,
                output_tokens=spent.output_tokens,
                cached_tokens=spent.cached_tokens,
            )


def _spent(counted: Usage | None, given: int, made: int) -> Usage:
    """Return the tokens used: the provider's count if there is one, else our estimate."""
    if counted is None:
        return Usage(given, made)
    return replace(counted, output_tokens=max(counted.output_tokens, 0) or made)
