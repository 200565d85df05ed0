"""Faults in triggers and webhooks: once only, signatures, owners."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "cron-instant-fires-twice",
        "storage/triggers/new_events.py",
        "        if last is not None and last >= event.instant[1]:",
        "        if last is not None and last > event.instant[1]:",
        ("storage/test_trigger_store.py::test_T3_an_instant_is_taken_in_once_and_never_goes_back",),
        "two processes fire the same instant of a schedule",
    ),
    Mutant(
        "envelope-settled-by-another",
        "storage/triggers/inbox.py",
        "!= [(owner,)]:\n        return False\n    yield from write(drafts)",
        "== []:\n        return False\n    yield from write(drafts)",
        ("storage/test_trigger_store.py::test_only_the_owner_settles_an_envelope_and_only_once",),
        "a process that lost a dispatch settles it all the same",
    ),
    Mutant(
        "delivery-known-without-its-digest",
        "storage/triggers/new_events.py",
        "conflict=held[1] != event.claim.digest)",
        "conflict=False)",
        ("storage/test_trigger_store.py::test_S26_a_delivery_is_taken_in_once_with_its_claim",),
        "another body under a known delivery id is taken for a repetition",
    ),
    Mutant(
        "signature-compared-by-its-start",
        "triggers/signatures.py",
        "            genuine |= hmac.compare_digest(expected, mark)",
        "            genuine |= hmac.compare_digest(expected[:8], mark[:8])",
        ("triggers/test_signatures.py::test_S4_ten_thousand_mutated_requests_are_all_refused",),
        "a forged signature needs four right bytes",
    ),
    Mutant(
        "first-key-only",
        "triggers/signatures.py",
        "    for secret in secrets:\n        expected",
        "    for secret in secrets[:1]:\n        expected",
        (
            "triggers/test_signatures.py::"
            "test_G15_a_thousand_valid_requests_under_two_rotated_keys_are_all_accepted",
        ),
        "keys cannot be changed without a gap",
    ),
    Mutant(
        "replay-window-one-sided",
        "triggers/signatures.py",
        "abs(now_s - int(time)) > TOLERANCE_S",
        "now_s - int(time) > TOLERANCE_S",
        ("triggers/test_signatures.py::test_S4_each_known_trick_is_refused",),
        "a request signed for next year is accepted until then",
    ),
    Mutant(
        "replay-window-too-wide",
        "triggers/signatures.py",
        "TOLERANCE_S = 300",
        "TOLERANCE_S = 301",
        ("triggers/test_signatures.py::test_S4_each_known_trick_is_refused",),
        "an old request is accepted longer than is promised",
    ),
    Mutant(
        "signed-body-without-its-time",
        "triggers/signatures.py",
        'Unproven("no single id, time and signature")\n    if late := _off(time, now_s):',
        'Unproven("no single id, time and signature")\n    if late := None:',
        ("triggers/test_signatures.py::test_S4_each_known_trick_is_refused",),
        "a captured Standard Webhooks request can be sent again forever",
    ),
    Mutant(
        "gate-forgets-a-cancelled-mark",
        "triggers/gates.py",
        "        if written is not None:\n",
        "        if written is not None and cancelled is None:\n",
        (
            "triggers/test_gates.py"
            "::test_an_event_that_is_cancelled_anywhere_at_its_gate_holds_nothing",
        ),
        "a job that is cancelled as it passes its gate holds it as long as the process lives",
    ),
    Mutant(
        "a2a-resend-is-a-conflict",
        "orchestrator/webhook_rules.py",
        "return proven.digest if message is None else a2a.message_digest(message)",
        "return proven.digest",
        (
            "interop/test_a2a_clients.py::test_a_message_that_is_sent_again_is_answered_like_the_first",
        ),
        "a client that had no answer is refused when it sends its message again",
    ),
    Mutant(
        "a2a-keys-of-two-tenants",
        "orchestrator/webhook_rules.py",
        "    if any(key.tenant_id != found[0].tenant_id for key in found):",
        "    if False:",
        (
            "interop/test_a2a_clients.py"
            "::test_a_push_notification_proves_itself_by_its_token_or_a_bearer_key",
        ),
        "a request with the keys of two tenants counts for one of them",
    ),
    Mutant(
        "agent-card-shows-signed-hooks",
        "orchestrator/agent_card.py",
        ' and hook.proof == "bearer"',
        "",
        (
            "orchestrator/test_a2a_rules.py"
            "::test_the_card_tells_paths_and_what_the_manifest_publishes_and_nothing_else",
        ),
        "the public card shows paths that no A2A client can use",
    ),
    Mutant(
        "a2a-failed-task-is-delivered",
        "triggers/a2a.py",
        '    _check_task(uri, found["result"])\n',
        "",
        ("interop/test_a2a_servers.py::test_a_task_that_ended_badly_is_a_failed_attempt",),
        "an agent's failed task counts as done",
    ),
    Mutant(
        "cancelled-job-leaves-its-mark",
        "triggers/gates.py",
        "                cancelled = cancel\n        try:\n            tickets = answer.result()",
        "                raise\n        try:\n            tickets = answer.result()",
        (
            "triggers/test_worker_jobs.py::"
            "test_a_job_that_is_cancelled_at_any_await_leaves_its_gates_open",
        ),
        "a slot that the store gave to a cancelled job is taken as long as the process lives",
    ),
    Mutant(
        "takeover-looks-at-other-triggers",
        "storage/sql/triggers.sql",
        "WHERE envelope BETWEEN :first AND :last AND @is_one_of(binding_id, :bindings)\n",
        "WHERE envelope BETWEEN :first AND :last AND :bindings = :bindings\n",
        (
            "storage/test_trigger_store.py::"
            "test_events_of_triggers_that_are_gone_hold_up_no_takeover",
        ),
        "a process takes over events of triggers that it does not have",
    ),
)
