"""Requests to a model and its replies, in the format of no provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal

from harn.records import Record

if TYPE_CHECKING:
    # Only type checkers need the default, which Python itself has from 3.13 on.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

Role = Literal["user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Usage(Record):
    """Tokens that a call used, as the provider counted them.

    *cached_tokens* are those of the input that the provider read from its cache.

    >>> (Usage(90, 10) + Usage(5, 5)).total_tokens
    110
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool; *arguments* is its JSON text, not yet checked.

    >>> ToolCall("call_1", "add", '{"a": 1}').name
    'add'
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message: of the user, of the model (possibly with tool calls), or a tool's result.

    >>> Message("user", "Hello").role
    'user'
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for a model; *parameters* is a JSON Schema of an object.

    >>> ToolSpec("now", "Tell the time.", {"type": "object"}).name
    'now'
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything that one call sends to a model.

    >>> ModelRequest("small", (Message("user", "Hello"),)).max_tokens
    1024
    """

    model: str
    messages: tuple[Message, ...]
    system: str | None = None
    max_tokens: int = 1024
    temperature: float | None = None
    tools: tuple[ToolSpec, ...] = ()
    schema: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the provider's request, sent unchanged."""
    sending: Callable[[], Awaitable[None]] | None = field(default=None, repr=False, compare=False)
    """Awaited by the provider just before the request is sent; see `LlmSlot.sending`."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The complete reply to a call.

    >>> ModelReply("Hello", Usage(3, 1), "small").text
    'Hello'
    """

    text: str
    usage: Usage
    model: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream: *text*, or the *usage* when the provider sends it.

    >>> Delta("Hel").text + Delta("lo").text
    'Hello'
    """

    text: str = ""
    usage: Usage | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LlmResult(Generic[T_co]):
    """The result of `llm_call`; *value* is the checked value if there was a schema, else None.

    >>> LlmResult("Hello", Usage(3, 1), "small", "acme").usage.total_tokens
    4
    """

    text: str
    usage: Usage
    model: str
    provider: str
    raw: Any = None
    value: T_co = None  # type: ignore[assignment] # its type is None without a schema
    tool_calls: tuple[ToolCall, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return text, usage, model and provider, JSON-ready."""
        return {
            "text": self.text,
            "usage": self.usage.as_dict(),
            "model": self.model,
            "provider": self.provider,
        }
