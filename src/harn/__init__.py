"""harn orchestrates agents, and any work that waits.

    edges        cli ──▶ portal
    service      orchestrator
    routing      triggers   llm
    features     pools  supervisors  workers  ratelimit  state
    primitives   sync ──▶ tasks    │   eventlog ──▶ storage
                 in this process   │   survives this process
    ground       clock runtime current context errors settings topics duration ids telemetry
                 batcher durable_calls durable_types durable_work error_text escaping event_loop
                 exact_json file_sync front_door graceful_stop masking naming open_runtimes
                 option_checks plurals private_files pydantic_types quiescence records retry_policy
                 run_main running_context running_processes stopping teardown unsettled
                 unsettled_sources

Everything public is importable from here and loaded when it is first used, so that `import harn`
costs nothing and the command line starts at once. `__init__.pyi` tells type checkers the same.
"""

from __future__ import annotations

import sys

from harn.front_door import front_door

if sys.platform == "win32":
    raise ImportError("harn runs on Linux and macOS; on Windows, use it inside WSL")

__version__ = "0.2.0"

_ROOMS = {
    "duration": "Duration",
    "durable_calls": "durable",
    "errors": """
        AcquireTimeout ChannelClosed ChannelDeadlock ClaimLost DeadlineExceeded DeadlockError
        HarnError
        InvalidOption JobCancelled JobError JobFailed MailboxClosed ManifestError ModelError
        MutexReentered PoolBusy PoolClosed
        PoolError PoolExists PoolFull PoolLocked PoolNotFound PoolScopeUnavailable PoolTaskCancelled
        PoolTaskFailed PoolTaskRejected RaceFailed RateLimitError SseError StepChanged StorageBusy
        StorageCorrupt StorageError StorageVersion TaskCancelled TriggerError WorkerDied
    """,
    "eventlog": "event_log_emit event_log_read event_log_subscribe",
    "ratelimit": """
        Bucket BucketGrant Budget LlmSlot Price ProviderLimits RateLimitGrant
        durable_rate_limit_acquire llm_budget llm_price llm_rate_limit llm_slot with_rate_limit
    """,
    "pools": """
        Backpressure BackpressurePolicy Pool PoolHost PoolOptions PoolSnapshot PoolTask
        QueueStrategy Retention Strategy TaskSnapshot backpressure_queue fail_fast
        fair_round_robin fifo lifo pool_create pool_get pool_id pool_list pool_simulate_restart
        pool_wait priority ring_buffer
    """,
    "llm": """
        AgentResult Delta LlmResult Message ModelReply ModelRequest Provider SseEvent SseStream
        ToolCall ToolSpec Usage UsageTotal agent_loop llm_call llm_provider llm_stream llm_usage
        sse_connect
    """,
    "retry_policy": "RetryPolicy",
    "state": """
        agent_state_cas agent_state_delete agent_state_get agent_state_list agent_state_set
        agent_state_snapshot step store_cas store_delete store_get store_list store_set
        store_snapshot
    """,
    "run_main": "run",
    "runtime": "Runtime",
    "current": """
        current_runtime runtime_context runtime_context_clear runtime_context_get
        runtime_context_set runtime_context_values
    """,
    "running_context": "RuntimeContext",
    "tasks": """
        Err Ok Owned ParallelStream Settled TaskHandle cancel_graceful deadline defer
        disown drop from_thread is_cancelled is_err is_ok owned parallel parallel_each
        parallel_each_stream parallel_race parallel_settle retry run_in_thread scope sleep spawn
        unwrap unwrap_err wait_agent
    """,
    "storage": "Event",
    "supervisors": """
        Child ChildContext ChildState Lease Restart Supervisor SupervisorEvent SupervisorMetrics
        SupervisorState supervisor_start
    """,
    "sync": """
        Atomic Channel Mailbox MailboxMetrics Mutex Permit Selected SharedCell SharedMap
        SharedMetrics SharedSnapshot SyncMetrics Waitpoint atomic channel channel_select
        mailbox_lookup mailbox_open mailbox_send mutex shared_cell shared_map sync_gate_acquire
        sync_metrics sync_mutex_acquire sync_release sync_rwlock_acquire sync_semaphore_acquire
        waitpoint_cancel waitpoint_complete waitpoint_wait
    """,
    "triggers": """
        DispatchHandle EmitReceipt SpawnToPool TriggerBinding TriggerEvent channel_emit
        trigger_fire trigger_list trigger_register trigger_unregister
    """,
    "unsettled": "UnsettledState unsettled_state",
    "workers": """
        Bury Claim ConsumerState DrainReport EnqueueReceipt GiveBack Job JobState JobStep NewJob
        QueueSummary RetryLater SchedulerPolicy WorkerQueue consumers drain worker_queue
        worker_queues
    """,
}
__all__ = sorted(name for names in _ROOMS.values() for name in names.split())

front_door(__name__, _ROOMS)
