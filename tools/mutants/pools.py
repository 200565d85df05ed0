"""Faults in pools: the order of the queue, backpressure, idempotency, the journal."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "fair-partition-keeps-its-turn",
        "pools/task_queues.py",
        "            if partition.live:\n                self._rotation.append(partition)",
        "            if partition.live:\n                self._rotation.appendleft(partition)",
        ("pools/test_queue_strategies.py::test_P5_P6_every_queue_gives_the_order_of_its_model",),
        "a busy partition goes first until it is empty",
    ),
    Mutant(
        "ring-evicts-the-newest",
        "pools/eviction.py",
        "        return next(iter(self._tasks))",
        "        return next(reversed(self._tasks))",
        (
            "pools/test_backpressure.py::"
            "test_B3_B7_the_victim_is_the_oldest_of_all_or_of_the_longest",
        ),
        "a ring buffer keeps the oldest tasks",
    ),
    Mutant(
        "newcomer-overtakes-parked",
        "pools/backpressure.py",
        "    if count <= free + policy.max_depth - queued and not ahead:",
        "    if count <= free + policy.max_depth - queued:",
        ("pools/test_backpressure.py::test_a_submit_meets_what_its_policy_says",),
        "a submit takes the place that is held for a parked one",
    ),
    Mutant(
        "parked-place-not-passed-on",
        "pools/admission.py",
        "            slots.blocked.leave(waiter)\n            slots.hold_places()",
        "            slots.blocked.leave(waiter)",
        ("pools/test_pool.py::test_B2_a_place_that_is_given_up_goes_to_the_next_in_line",),
        "a parked submitter that is cancelled takes its place along",
    ),
    Mutant(
        "batch-enters-a-place-at-a-time",
        "pools/blocked_submitters.py",
        "            if self._held + waiter.want > free:\n                return\n",
        "",
        (
            "pools/test_submit_many.py::"
            "test_B2_a_batch_waits_for_all_its_places_and_is_not_overtaken",
        ),
        "submit_many puts more tasks into a queue than it may hold",
    ),
    Mutant(
        "rejected-submit-binds-its-key",
        "pools/admission.py",
        "        slots.keys.unbind(victim)  # it never ran, so its key binds nothing",
        "",
        ("pools/test_pool.py::test_I3_a_rejected_task_binds_nothing",),
        "a submit that is tried again after a rejection is answered with the rejection",
    ),
    Mutant(
        "retention-forgets-a-task-too-early",
        "pools/ended_tasks.py",
        "tasks[0]._finished_ms < since):",
        "tasks[0]._finished_ms <= since):",
        ("pools/test_pool.py::test_I7_a_key_holds_up_to_its_age_and_no_longer",),
        "a key is forgotten at the age that retention still promises",
    ),
    Mutant(
        "journal-not-synced",
        "storage/jsonl.py",
        "        sync_data(self.handle)",
        "        os.fstat(self.handle)",
        ("pools/test_journal.py::test_J3_submit_returns_after_the_sync_and_not_before",),
        "a submit is acknowledged before it is on the disk",
    ),
    Mutant(
        "journal-lock-removed",
        "pools/journal_file.py",
        "            if not jsonl.try_lock(fd):",
        "            if os.fstat(fd) is None:",
        ("pools/test_journal.py::test_two_processes_race_for_one_pool_and_one_wins",),
        "two processes write one journal",
    ),
    Mutant(
        "journal-batch-acknowledged-after-a-failed-write",
        "pools/journal.py",
        "        failed = [line for line in lines if not line.owed]",
        "        failed = [line for line in lines if not line.owed][:1]",
        ("pools/test_journal.py::test_J9_a_failed_write_fails_every_submit_that_shared_it",),
        "of the submits that share a failed write only the first is told",
    ),
    Mutant(
        "journal-believes-a-failed-sync",
        "pools/journal.py",
        'self._break(lines, f"cannot sync {self.path}: {error.strerror}; reopen the pool")',
        'self._write_failed(lines, f"cannot sync {self.path}: {error.strerror}")',
        ("pools/test_journal.py::test_J9_after_a_failed_sync_the_journal_takes_nothing_more",),
        "a journal goes on after a sync that may have lost lines",
    ),
)
