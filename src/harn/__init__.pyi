from harn.duration import Duration as Duration
from harn.errors import (
    ChannelClosed as ChannelClosed,
    ChannelDeadlock as ChannelDeadlock,
    ClaimLost as ClaimLost,
    DeadlineExceeded as DeadlineExceeded,
    DeadlockError as DeadlockError,
    HarnError as HarnError,
    InvalidOption as InvalidOption,
    MailboxClosed as MailboxClosed,
    ManifestError as ManifestError,
    MutexReentered as MutexReentered,
    PoolBusy as PoolBusy,
    PoolClosed as PoolClosed,
    PoolError as PoolError,
    PoolExists as PoolExists,
    PoolFull as PoolFull,
    PoolLocked as PoolLocked,
    PoolNotFound as PoolNotFound,
    PoolScopeUnavailable as PoolScopeUnavailable,
    PoolTaskCancelled as PoolTaskCancelled,
    PoolTaskFailed as PoolTaskFailed,
    PoolTaskRejected as PoolTaskRejected,
    RaceFailed as RaceFailed,
    RateLimitError as RateLimitError,
    StorageBusy as StorageBusy,
    StorageCorrupt as StorageCorrupt,
    StorageError as StorageError,
    StorageVersion as StorageVersion,
    TaskCancelled as TaskCancelled,
    TriggerError as TriggerError,
    WorkerDied as WorkerDied,
)
from harn.eventlog import (
    event_log_emit as event_log_emit,
    event_log_read as event_log_read,
    event_log_subscribe as event_log_subscribe,
)
from harn.runtime import (
    Runtime as Runtime,
    RuntimeContext as RuntimeContext,
    current_runtime as current_runtime,
    run as run,
    runtime_context as runtime_context,
    runtime_context_clear as runtime_context_clear,
    runtime_context_get as runtime_context_get,
    runtime_context_set as runtime_context_set,
    runtime_context_values as runtime_context_values,
    sleep as sleep,
)
from harn.storage import Event as Event

__version__: str
__all__: list[str]
