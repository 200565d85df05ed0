"""Faults in worker queues: fencing, expiry, attempts, credit."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "superseded-claim-may-act",
        "storage/queue/settle.py",
        "    if job.claim_id != item.claim_id:",
        "    if job.claim_id is None:",
        ("workers/test_queue.py::test_A2_a_superseded_claim_can_do_nothing",),
        "a consumer that lost its claim settles the job of the next one",
    ),
    Mutant(
        "settled-claim-acts-again",
        "storage/queue/settle.py",
        "    if job.state in SETTLED_STATES or not job.held:",
        "    if job.state in SETTLED_STATES:",
        (
            "workers/test_queue.py::"
            "test_A1_a_second_call_on_a_settled_claim_is_false_and_changes_nothing",
        ),
        "a claim that was released or failed settles the job a second time",
    ),
    Mutant(
        "claim-outlives-its-expiry",
        "storage/sql/jobs.sql",
        "state IN (2, 3) AND wake_at <= :until",
        "state IN (2, 3) AND wake_at < :until",
        ("workers/test_queue.py::test_C5_a_silent_consumer_loses_its_claim",),
        "a claim is still held at the moment it expires",
    ),
    Mutant(
        "due-queue-not-looked-at-on-time",
        "storage/queue/job_index.py",
        "        return self.alarm is not None and self.alarm <= self.now",
        "        return self.alarm is not None and self.alarm < self.now",
        ("workers/test_queue.py::test_C5_a_silent_consumer_loses_its_claim",),
        "a scheduled job is not ready at its own time",
    ),
    Mutant(
        "attempts-not-counted-at-the-claim",
        "storage/sql/jobs.sqlite.sql",
        "wake_at = ?5, attempts = attempts + 1, epoch",
        "wake_at = ?5, attempts = attempts, epoch",
        ("workers/test_queue.py::test_C9_a_job_that_kills_its_workers_is_dead_after_its_attempts",),
        "a job that kills its workers is tried forever",
    ),
    Mutant(
        "one-attempt-too-many",
        "storage/queue/settle.py",
        "        if item.final or 0 < job.max_attempts <= job.attempts:",
        "        if item.final or 0 < job.max_attempts < job.attempts:",
        ("workers/test_queue.py::test_the_last_failure_is_fatal_at_once_and_the_claim_knows",),
        "a job is tried once more than its limit allows",
    ),
    Mutant(
        "release-keeps-the-attempt",
        "storage/queue/job_changes.py",
        "    return Change(state, until, 0, max(0, job.attempts - 1), None, job.history)",
        "    return Change(state, until, 0, job.attempts, None, job.history)",
        ("workers/test_queue.py::test_release_gives_the_attempt_back",),
        "a job that was only given back runs out of attempts",
    ),
    Mutant(
        "expired-claim-revived-over-the-cap",
        "storage/queue/settle.py",
        "            if 0 < self._state.cap <= Share(*row).in_flight:",
        "            if 0 < self._state.cap < Share(*row).in_flight:",
        ("workers/test_queue.py::test_K1_an_expired_claim_is_not_revived_over_its_keys_cap",),
        "a renewal after the expiry puts one claim more in flight than the cap",
    ),
    Mutant(
        "cap-counts-one-too-many",
        "storage/queue/job_records.py",
        "        elif cap and self.in_flight >= cap:",
        "        elif cap and self.in_flight > cap:",
        (
            "workers/test_fairshare.py::"
            "test_K1_no_more_claims_of_a_key_than_its_cap_and_K2_others_go_on",
        ),
        "a key has one claim more in flight than its cap",
    ),
    Mutant(
        "dedupe-window-ends-late",
        "storage/queue/enter.py",
        "settled_at + dedupe_ms > state.now",
        "settled_at + dedupe_ms >= state.now",
        (
            "workers/test_queue.py::"
            "test_a_dedupe_key_is_free_at_the_end_of_its_window_and_not_before",
        ),
        "a job is still answered with its predecessor when the window is over",
    ),
    Mutant(
        "refill-grants-nothing",
        "workers/fairshare.py",
        "        return share.credit if share.round == round else self.full",
        "        return share.credit if share.round == round else 1",
        ("workers/test_fairshare.py::test_D1_over_120_picks_at_2_to_1_the_shares_are_exact",),
        "a new round grants every key one job, whatever its weight",
    ),
    Mutant(
        "served-key-pays-nothing",
        "workers/fairshare.py",
        "        credit = max(0, lane.credit(self._round) - 1)",
        "        credit = max(0, lane.credit(self._round))",
        ("workers/test_fairshare.py::test_two_busy_keys_are_served_in_an_exact_sequence",),
        "a key never runs out of credit and no round ends",
    ),
    Mutant(
        "promotions-follow-each-other",
        "workers/fairshare.py",
        "        if not self._promoted:\n            return True\n        known = self._lanes",
        "        if True:\n            return True\n        known = self._lanes",
        ("workers/test_fairshare.py::test_D8_a_cold_key_gets_its_turn_although_everything_is_old",),
        "a key full of old jobs is promoted over everyone else, again and again",
    ),
    Mutant(
        "release-refunds-an-earlier-round",
        "storage/queue/job_changes.py",
        "        if is_released and job.claim_round == self._state.round:",
        "        if is_released:",
        (
            "workers/test_fairshare.py::"
            "test_D5_a_job_given_back_in_a_later_round_earns_its_key_no_turn",
        ),
        "a job given back in a later round earns its key an extra turn",
    ),
    Mutant(
        "release-refunds-nothing",
        "storage/queue/job_changes.py",
        "            self._refunds[job.key] += 1",
        "            self._refunds[job.key] += 0",
        ("workers/test_fairshare.py::test_D5_a_job_that_is_given_back_costs_its_key_no_credit",),
        "a job given back costs its key a turn",
    ),
    Mutant(
        "quarter-hour-comes-late",
        "workers/fairshare.py",
        "    return max(0, priority - max(0, age_ms) // QUARTER_HOUR_MS)",
        "    return max(0, priority - max(0, age_ms - 1) // QUARTER_HOUR_MS)",
        ("workers/test_fairshare.py::test_ranks_rise_every_quarter_of_an_hour",),
        "a job is lifted a millisecond late",
    ),
)
