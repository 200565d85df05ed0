"""Model calls within the limits of their providers.

messages.py    requests, replies and messages, in the format of no provider
provider.py    what a provider must implement: complete, stream, count_tokens
openai.py      one wire format; anthropic.py, the other; http.py, the HTTP client of both
registry.py    the providers of a runtime, and which of them a call uses
call.py        llm_call: reserve, call, settle; llm_stream.py, llm_stream
schemas.py     structured answers, checked
tools.py       functions as tools; tool_parameters.py, their parameters
agent.py       agent_loop; conversation.py, its messages; done_tool.py, the tool that ends it;
               agent_steps.py, its calls as steps of a job
sse.py         sse_connect: events of a server; event_stream.py, their format
telemetry.py   spans and counters; usage.py, llm_usage: what calls have used
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.llm.agent import agent_loop
    from harn.llm.call import llm_call
    from harn.llm.conversation import AgentResult
    from harn.llm.event_stream import SseEvent
    from harn.llm.llm_stream import llm_stream
    from harn.llm.messages import (
        Delta,
        LlmResult,
        Message,
        ModelReply,
        ModelRequest,
        ToolCall,
        ToolSpec,
        Usage,
    )
    from harn.llm.provider import Provider
    from harn.llm.registry import llm_provider
    from harn.llm.sse import SseStream, sse_connect
    from harn.llm.usage import UsageSums, UsageTotal, llm_usage
else:
    front_door(
        __name__,
        {
            "agent": "agent_loop",
            "call": "llm_call",
            "conversation": "AgentResult",
            "event_stream": "SseEvent",
            "llm_stream": "llm_stream",
            "messages": "Delta LlmResult Message ModelReply ModelRequest ToolCall ToolSpec Usage",
            "provider": "Provider",
            "registry": "llm_provider",
            "sse": "SseStream sse_connect",
            "usage": "UsageSums UsageTotal llm_usage",
        },
    )

__all__ = [
    "AgentResult",
    "Delta",
    "LlmResult",
    "Message",
    "ModelReply",
    "ModelRequest",
    "Provider",
    "SseEvent",
    "SseStream",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "UsageSums",
    "UsageTotal",
    "agent_loop",
    "llm_call",
    "llm_provider",
    "llm_stream",
    "llm_usage",
    "sse_connect",
]
