"""Call a model within its limits: reserve, call, settle.

Before a call, an estimate of its tokens is reserved under the limits of provider and model, which
all processes share. Afterwards the reservation is corrected to the tokens that the provider
counted. If a provider's response asks to wait (`Retry-After`, rate-limit headers), the callers of
every process wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, overload

from harn.clock import sleep_until
from harn.current import current_runtime
from harn.errors import InvalidOption, ModelError
from harn.llm.messages import LlmResult, Message, ModelReply, ModelRequest, ToolSpec, Usage
from harn.llm.registry import Models, Route
from harn.llm.schemas import Shape, Unacceptable, shape_of
from harn.llm.telemetry import observed
from harn.option_checks import is_number, whole_number
from harn.ratelimit import llm_slot

logger: logging.Logger = logging.getLogger("harn.llm")

MAX_BACKOFF_MS = 30_000

Prompt = str | Sequence[Message]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The checked options for retries."""

    max_retries: int
    backoff_ms: int


class LlmOptions(TypedDict, total=False):
    """The options of `llm_call` that functions above it pass on."""

    provider: str | None
    model: str | None
    max_tokens: int
    temperature: float | None
    schema: Any
    max_retries: int
    backoff_ms: int
    extra: Mapping[str, Any] | None


@overload
async def llm_call(
    prompt: Prompt,
    system: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    max_tokens: int = 1024,
    temperature: float | None = None,
    tools: Sequence[ToolSpec] = (),
    schema: None = None,
    max_retries: int = 5,
    backoff_ms: int = 1000,
    extra: Mapping[str, Any] | None = None,
) -> LlmResult[None]: ...
@overload
async def llm_call(
    prompt: Prompt,
    system: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    max_tokens: int = 1024,
    temperature: float | None = None,
    tools: Sequence[ToolSpec] = (),
    schema: type[T],
    max_retries: int = 5,
    backoff_ms: int = 1000,
    extra: Mapping[str, Any] | None = None,
) -> LlmResult[T]: ...
@overload
async def llm_call(
    prompt: Prompt,
    system: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    max_tokens: int = 1024,
    temperature: float | None = None,
    tools: Sequence[ToolSpec] = (),
    schema: Any,
    max_retries: int = 5,
    backoff_ms: int = 1000,
    extra: Mapping[str, Any] | None = None,
) -> LlmResult[Any]: ...
async def llm_call(
    prompt: Prompt,
    system: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    max_tokens: int = 1024,
    temperature: float | None = None,
    tools: Sequence[ToolSpec] = (),
    schema: Any = None,
    max_retries: int = 5,
    backoff_ms: int = 1000,
    extra: Mapping[str, Any] | None = None,
) -> LlmResult[Any]:
    """Call a model within the limits in force, and return its answer.

    *schema* (a JSON Schema, a msgspec type, a pydantic model) asks for a structured answer, which
    is checked; `result.value` is the value. If it does not fit, the model is asked once more. A
    call that may succeed later (429, 5xx, a lost connection) is retried, *max_retries* times.

    Cancelling closes the connection; the reservation stays as it was made.

    >>> import asyncio
    >>> from harn import llm_provider
    >>> from harn.llm.http import Secret
    >>> from harn.llm.openai import OpenAICompatible
    >>> from harn.testing import fresh_runtime
    >>> from harn.testing.fake_provider import FakeModels, Say
    >>> async def main() -> str:
    ...     async with fresh_runtime(), FakeModels([Say("Paris")]) as models:
    ...         client = OpenAICompatible("local", models.openai_url, Secret("no key"))
    ...         llm_provider("local", client, default_model="small")
    ...         result = await llm_call("What is the capital of France?")
    ...         await client.aclose()
    ...         return result.text
    >>> asyncio.run(main())
    'Paris'
    """
    shape = None if schema is None else shape_of(schema)
    route = current_runtime().service(Models).route(provider, model)
    options = _options(max_retries, backoff_ms)
    request = make_request(
        route,
        prompt,
        system,
        max_tokens=max_tokens,
        temperature=temperature,
        tools=tools,
        shape=shape,
        extra=extra,
    )
    reply = await _complete(route, request, options)
    if shape is None:
        return _result(route, reply, reply.usage)
    try:
        return _result(route, reply, reply.usage, shape.read(reply.text))
    except Unacceptable as problem:
        return await _mend(route, request, options, reply, shape, str(problem))


async def _mend(
    route: Route,
    request: ModelRequest,
    options: CallOptions,
    reply: ModelReply,
    shape: Shape,
    problem: str,
) -> LlmResult:
    """Tell the model what is wrong with its answer; raise ModelError if the next is wrong too."""
    again = (
        Message("assistant", reply.text or "(nothing)"),
        Message("user", f"That answer does not fit: {problem}. Answer again, only with the JSON."),
    )
    mended = await _complete(route, replace(request, messages=(*request.messages, *again)), options)
    try:
        return _result(route, mended, reply.usage + mended.usage, shape.read(mended.text))
    except Unacceptable as still:
        raise ModelError(
            f"{route.provider}: two answers did not fit the schema; the second: {still}",
            provider=route.provider,
        ) from None


async def _complete(route: Route, request: ModelRequest, options: CallOptions) -> ModelReply:
    """Call until it succeeds, fails for good, or has been retried *max_retries* times."""
    for attempt in range(options.max_retries + 1):
        try:
            return await _attempt(route, request, is_retry=attempt > 0)
        except ModelError as error:
            if not error.retryable or attempt == options.max_retries:
                raise
            logger.info("%s; retry %d of %d", error, attempt + 1, options.max_retries)
        await _back_off(options.backoff_ms, attempt)
    raise AssertionError("unreachable")


async def _attempt(route: Route, request: ModelRequest, *, is_retry: bool) -> ModelReply:
    given = route.client.count_tokens(request)
    async with llm_slot(
        route.provider,
        route.model,
        input_tokens=given,
        output_tokens=request.max_tokens,
        is_retry=is_retry,
    ) as slot:
        with observed(route, request) as seen:
            try:
                reply = await route.client.complete(replace(request, sending=slot.sending))
            except ModelError as error:
                await slot.feedback(error.headers, status=error.status_code)
                if error.status_code is not None:
                    # The provider refused the call, so it has used no tokens.
                    await slot.settle(input_tokens=0, output_tokens=0)
                raise
            seen.ended(reply.usage, reply.model, reply.finish)
        await slot.settle(
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            cached_tokens=reply.usage.cached_tokens,
        )
        await slot.feedback(reply.headers)
        return reply


async def _back_off(backoff_ms: int, attempt: int) -> None:
    clock = current_runtime().clock
    pause = min(backoff_ms * 2**attempt, MAX_BACKOFF_MS) / 1000
    await sleep_until(clock, clock.monotonic() + pause)


def make_request(
    route: Route,
    prompt: Prompt,
    system: str | None,
    *,
    max_tokens: int,
    temperature: float | None = None,
    tools: Sequence[ToolSpec] = (),
    shape: Shape | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ModelRequest:
    """Check the parts of a request and return it."""
    whole_number("max_tokens", max_tokens, least=1)
    if isinstance(prompt, str):
        messages: tuple[Message, ...] = (Message("user", prompt),)
    else:
        messages = tuple(prompt) if isinstance(prompt, Iterable) else ()
    if not messages or not all(_is_message(each) for each in messages):
        raise InvalidOption("prompt", prompt, "a string, or a list of Message")
    if system is not None and not isinstance(system, str):
        raise InvalidOption("system", system, "a string, or None")
    if temperature is not None and not is_number(temperature):
        raise InvalidOption("temperature", temperature, "a number, or None")
    if not all(isinstance(each, ToolSpec) for each in tools):
        raise InvalidOption("tools", tools, "a list of ToolSpec; agent_loop takes functions")
    if extra is not None and not isinstance(extra, Mapping):
        raise InvalidOption("extra", extra, "a mapping of fields, or None")
    return ModelRequest(
        model=route.model,
        messages=messages,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        tools=tuple(tools),
        schema=None if shape is None else shape.schema,
        extra=dict(extra or {}),
    )


def _is_message(given: object) -> bool:
    return isinstance(given, Message) and isinstance(given.text, str)


def _options(max_retries: int, backoff_ms: int) -> CallOptions:
    for name, value in (("max_retries", max_retries), ("backoff_ms", backoff_ms)):
        whole_number(name, value, least=0)
    return CallOptions(max_retries, backoff_ms)


def _result(route: Route, reply: ModelReply, usage: Usage, value: Any = None) -> LlmResult:
    return LlmResult(
        text=reply.text,
        usage=usage,
        model=reply.model,
        provider=route.provider,
        raw=reply.raw,
        value=value,
        tool_calls=reply.tool_calls,
    )
