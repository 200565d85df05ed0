"""Model calls inside the budget.

messages.py   what is said and what comes back, in no provider's dialect
provider.py   the seam: complete, stream, count_tokens
openai.py     one wire format; anthropic.py, the other; http.py, the client under both
models.py     which provider and model a call reaches
call.py       llm_call: reserve, call, settle; stream.py, llm_stream
schemas.py    structured answers, checked
tools.py      functions as tools; agent.py, agent_loop
observing.py  spans and counters
"""

from harn.llm.agent import AgentResult, agent_loop
from harn.llm.call import llm_call
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
from harn.llm.models import llm_provider
from harn.llm.provider import Provider
from harn.llm.stream import llm_stream

__all__ = [
    "AgentResult",
    "Delta",
    "LlmResult",
    "Message",
    "ModelReply",
    "ModelRequest",
    "Provider",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "agent_loop",
    "llm_call",
    "llm_provider",
    "llm_stream",
]
