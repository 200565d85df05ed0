"""What the dashboard shows: a title for every metric family, and the numbers of its first row."""

from __future__ import annotations

from dataclasses import dataclass

TITLES: dict[str, str] = {
    "harn_runtime_tasks": "Tasks that the runtime holds",
    "harn_event_log_dropped_total": "Audit records dropped",
    "harn_event_log_damaged_total": "Damaged records skipped",
    "harn_llm_calls_total": "Calls to models, by outcome",
    "harn_llm_tokens_total": "Tokens used",
    "harn_llm_cost_usd_total": "Cost of model calls",
    "harn_pool_active": "Running tasks",
    "harn_pool_queued": "Queued tasks",
    "harn_pool_slots": "Slots of each pool",
    "harn_pool_blocked_submitters": "Submitters that wait for a place",
    "harn_pool_tasks_total": "Tasks that ended, by status",
    "harn_pool_idempotency_conflicts_total": "Idempotency keys with another call",
    "harn_trigger_dispatches_total": "Dispatches that ended, by status",
    "harn_trigger_duplicates_total": "Events that were known already",
    "harn_trigger_in_flight": "Dispatches under way",
    "harn_trigger_requests_total": "Requests to triggers, by answer",
    "harn_worker_queue_depth": "Jobs ready or in flight",
    "harn_worker_queue_ready": "Jobs that wait for a consumer",
    "harn_worker_queue_in_flight": "Jobs in flight, by queue",
    "harn_worker_queue_paused_seconds": "Paused for",
    "harn_worker_consumers": "Consumers alive, by queue",
    "harn_worker_jobs_total": "Jobs and attempts that ended, by outcome",
    "harn_worker_dead_letters_total": "Jobs that became dead",
    "harn_worker_handler_seconds": "Time that handlers work",
    "harn_worker_queue_claim_age_seconds": "Time that jobs wait for their claim",
    "harn_scheduler_selections_total": "Jobs chosen, by key",
    "harn_scheduler_deferrals_total": "Claims that found every key at its cap",
    "harn_scheduler_starvation_promotions_total": "Jobs promoted after a long wait",
    "harn_scheduler_deficit": "Credit left in this round, by key",
    "harn_scheduler_oldest_eligible_age_seconds": "Age of the oldest ready job, by key",
    "harn_supervisors": "Supervisors",
    "harn_supervisor_children": "Supervised children, by status",
    "harn_supervisor_events_total": "Events of supervised children",
    "harn_ratelimit_admitted_total": "Acquires admitted",
    "harn_ratelimit_waited_total": "Acquires that had to wait",
    "harn_ratelimit_wait_seconds_total": "Waiting for admission",
    "harn_ratelimit_timed_out_total": "Acquires that timed out",
    "harn_ratelimit_settled_total": "Reservations corrected",
    "harn_ratelimit_used_units": "Units used in the window",
    "harn_ratelimit_waiting": "Acquires that wait now",
}


@dataclass(frozen=True, slots=True)
class Stat:
    """A number of the first row: green below *warn*, orange from there on, red from *bad* on."""

    title: str
    expr: str
    unit: str = "short"
    warn: float | None = None
    bad: float | None = None


# `$job` is the dashboard's variable. Numbers of the store are the same in every process: max.
STATS: tuple[Stat, ...] = (
    Stat("Jobs waiting", 'sum(max by (queue) (harn_worker_queue_ready{job=~"$job"}))'),
    Stat("Jobs in flight", 'sum(max by (queue) (harn_worker_queue_in_flight{job=~"$job"}))'),
    Stat(
        "Oldest job waits",
        'max(harn_scheduler_oldest_eligible_age_seconds{job=~"$job"})',
        *("s", 300, 900),
    ),
    Stat("Consumers alive", 'sum(max by (queue) (harn_worker_consumers{job=~"$job"}))'),
    Stat(
        "Jobs that became dead (1 h)",
        'sum(max by (queue) (increase(harn_worker_dead_letters_total{job=~"$job"}[1h])))',
        *("short", 1, 10),
    ),
    Stat("Longest pause", 'max(harn_worker_queue_paused_seconds{job=~"$job"})', "s", 1, 3600),
    Stat("Tasks running in pools", 'sum(harn_pool_active{job=~"$job"})'),
    Stat("Tasks queued in pools", 'sum(harn_pool_queued{job=~"$job"})'),
    Stat(
        "Dispatches that failed (1 h)",
        'sum(increase(harn_trigger_dispatches_total{job=~"$job", status=~"failed|dlq"}[1h]))',
        *("short", 1, 10),
    ),
    Stat("Acquires waiting", 'sum(harn_ratelimit_waiting{job=~"$job"})'),
    Stat(
        "Model cost (24 h)",
        'sum(increase(harn_llm_cost_usd_total{job=~"$job"}[24h]))',
        "currencyUSD",
    ),
    Stat(
        "Records lost or damaged (24 h)",
        'sum(increase(harn_event_log_dropped_total{job=~"$job"}[24h]))'
        ' + sum(increase(harn_event_log_damaged_total{job=~"$job"}[24h]))',
        *("short", 1, 1),
    ),
)
