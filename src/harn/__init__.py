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

The ground, on which every room stands:

    runtime.py          what the tasks of one program share; run_main.py, `harn.run`
    current.py          which runtime a call belongs to; open_runtimes.py, those of this process
    context.py          the running task, and the work that it belongs to
    running_context.py  the same as `runtime_context()` shows it
    clock.py            the time, and what wakes at a time
    settings.py         every HARN_* variable; duration.py, times as people write them
    topics.py           every topic and record kind of the log
    errors.py           every error and its code; error_text.py, an error as bounded text
    ids.py              new ids, and ids computed from names; naming.py, which names are allowed
    option_checks.py    numbers and words that a caller gives, checked
    records.py          a record as a dict; front_door.py, names loaded at their first use

    durable_calls.py    `@durable`: functions that stored data may name, and their calls as data
    durable_work.py     the job or pool task that a task works for
    durable_types.py    pydantic models in such calls; pydantic_types.py, pydantic if it is there
    exact_json.py       JSON that reads back as the same value
    retry_policy.py     how long a failed job waits, and what makes it dead at once

    graceful_stop.py    ends a task's wait, once; stopping.py, how a signal stops a program
    teardown.py         ends owned tasks, runs cleanups, chooses the error to raise
    quiescence.py       whether anything could still wake an event loop
    event_loop.py       which event loop runs here; running_processes.py, which processes do
    unsettled.py        `unsettled_state`; unsettled_sources.py, where it asks
    batcher.py          callers that meet share the next operation

    private_files.py    files that only their owner may use; file_sync.py, until they are on disk
    masking.py          URLs without passwords; escaping.py, text without control characters
    plurals.py          "1 job", "2 jobs"; __main__.py, `python -m harn`
    telemetry/          metrics, spans and log lines

The rooms above it, each of which lists its files in the same way:

    tasks/              structured concurrency: spawn, scope, parallel, deadline, defer
    sync/               channels, mailboxes, permits, shared values, the deadlock detector
    storage/            the store: the log and its indexes, on each engine
    eventlog/           the event log as users see it

    pools/              agent pools: slots, queues, backpressure, journals
    workers/            worker queues: jobs, claims, consumers, fair share
    supervisors/        children that are kept running
    ratelimit/          limits, budgets and prices that hold across processes
    state/              stored values, and the steps of durable work

    triggers/           an event finds its handlers
    llm/                model calls, tools, the agent loop
    orchestrator/       runs the triggers and queues of a manifest
    portal/             HTTP: pages, webhooks, operators' verbs
    cli/                the command line
    testing/            clocks, loops and providers for tests
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
