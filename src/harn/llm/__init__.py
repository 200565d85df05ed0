"""Model calls inside the budget.

messages      what is said and what comes back, in no provider's dialect
provider      the seam: complete, stream, count_tokens
openai, anthropic, http    two wire formats
models        which provider and model a call reaches
call, stream  llm_call, llm_stream: reserve, call, settle
schemas       structured answers, checked
tools, agent  functions as tools; agent_loop
observing     spans and counters
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
