"""Faults in the store: syncs, commits, leases, folds."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "sqlite-idle-sync-skipped",
        "storage/engines/sqlite/writer_thread.py",
        "        if self._unsynced and self.session is not None:\n            try:",
        "        if False and self.session is not None:\n            try:",
        ("storage/test_sqlite.py::test_47_an_idle_store_syncs_what_the_weaker_class_wrote",),
        "commits of durability=normal are never synced while the store is idle",
    ),
    Mutant(
        "sqlite-full-commit-leaves-earlier-unsynced",
        "storage/engines/sqlite/writer_thread.py",
        "            if full and self._unsynced:",
        "            if False and self._unsynced:",
        (
            "storage/test_sqlite.py::"
            "test_47_an_operation_that_writes_nothing_syncs_what_was_written_before",
        ),
        "a full commit that writes nothing leaves the weaker commits before it unsynced",
    ),
    Mutant(
        "sqlite-failed-commit-fails-one",
        "storage/engines/sqlite/writer_thread.py",
        "            for request in wanted:\n                if request.error is None:\n"
        "                    request.error = ours",
        "            for request in wanted[:1]:\n                if request.error is None:\n"
        "                    request.error = ours",
        ("storage/test_sqlite.py::test_a_commit_that_fails_fails_every_operation_in_it",),
        "a COMMIT that failed is acknowledged to all but the first operation in it",
    ),
    Mutant(
        "sqlite-failed-operation-not-rolled-back",
        "storage/engines/sqlite/writer_thread.py",
        '            execute("ROLLBACK" if alone else "ROLLBACK TO one")',
        '            execute("ROLLBACK" if alone else "SAVEPOINT two")',
        (
            "storage/test_conformance.py::"
            "test_an_operation_that_fails_in_a_shared_commit_fails_alone",
        ),
        "half of a failed operation is committed with its neighbours",
    ),
    Mutant(
        "postgres-stalled-sessions-are-left",
        "storage/engines/postgres/operation_runner.py",
        "                    end_stalled_sessions(connection, self._server)",
        "                    pass",
        (
            "storage/test_postgres.py::"
            "test_a_burst_that_arrives_without_its_end_holds_no_one_up[several]",
        ),
        "a process that was cut off in the middle of an operation keeps its locks",
    ),
    Mutant(
        "postgres-callers-transaction-is-ended",
        "storage/sql/log.postgres.sql",
        "c.relkind = 'r' AND c.relname NOT IN ('outbox', 'outbox_commits', 'outbox_store')",
        "c.relkind = 'r'",
        (
            "storage/test_stalled_sessions.py::"
            "test_a_transaction_of_the_caller_that_has_enqueued_is_left_alone[harn]",
        ),
        "a caller's own transaction that has enqueued is ended",
    ),
    Mutant(
        "postgres-idle-migration-is-left",
        "storage/sql/log.postgres.sql",
        "set_config('idle_in_transaction_session_timeout', :idle_ms, true)",
        "set_config('application_name', :idle_ms, true)",
        (
            "storage/test_postgres.py::"
            "test_a_process_that_is_cut_off_while_it_opens_the_store_holds_no_one_up",
        ),
        "a process that was cut off while it opened the store keeps the others out",
    ),
    Mutant(
        "file-commit-not-synced",
        "storage/engines/file/commit_journal.py",
        "            if sync:\n                self.sync()",
        "            if False:\n                self.sync()",
        ("storage/test_file.py::test_E1_power_loss_takes_no_acknowledged_record",),
        "an acknowledged commit may be lost with the power",
    ),
    Mutant(
        "file-checkpoint-does-not-sync-topics",
        "storage/engines/file/topic_files.py",
        "            _sync_file(self.path(topic))",
        "            self.path(topic)",
        ("storage/test_file.py::test_E1_power_loss_takes_no_acknowledged_record",),
        "the journal starts over before the topics' files hold what it said",
    ),
    Mutant(
        "jsonl-file-renamed-before-its-sync",
        "storage/jsonl.py",
        "            sync_file(new)\n            os.rename(",
        "            os.rename(",
        ("storage/test_file_syncs.py",),
        "a compacted topic or journal may be empty after a power cut",
    ),
    Mutant(
        "jsonl-rename-not-made-durable",
        "storage/jsonl.py",
        "            os.close(old)\n        _sync_folder(self.path, self.folder)",
        "            os.close(old)",
        ("storage/test_file_syncs.py",),
        "a trim may be undone by a power cut after the journal has moved on",
    ),
    Mutant(
        "jsonl-damage-joins-two-lines",
        "storage/jsonl.py",
        "        for piece in intact_pieces(line):",
        "        for piece in [line]:",
        ("storage/test_jsonl.py",),
        "a lost newline takes two lines with it",
    ),
    Mutant(
        "file-failed-sync-is-forgotten",
        "storage/engines/file/file_log.py",
        "            self._doubtful = True",
        "            self._doubtful = False",
        ("storage/test_file.py::test_J9_a_sync_that_fails_later_is_made_good_by_the_next_commit",),
        "after a failed sync a later one of the same journal is believed",
    ),
    Mutant(
        "file-failed-commit-fails-one",
        "storage/engines/file/file_driver.py",
        "for request in wanted:\n                request.error = request.error or ours",
        "for request in wanted[:1]:\n                request.error = request.error or ours",
        ("storage/test_file_syncs.py::test_J9_a_commit_that_fails_fails_every_operation_in_it",),
        "a commit that failed is acknowledged to all but the first operation in it",
    ),
    Mutant(
        "file-index-does-not-fold-others",
        "storage/engines/file/file_driver.py",
        "        names = self._log.statements.names() if grown is None else grown",
        "        names = self._log.statements.names() if grown is None else set()",
        ("storage/test_rebuild.py::test_a_second_process_folds_what_the_first_one_wrote",),
        "what another process wrote is not in this one's index",
    ),
    Mutant(
        "postgres-retry-takes-a-new-number",
        "storage/sql/log.postgres.sql",
        "WHERE producers.seq < excluded.seq",
        "WHERE producers.seq <= excluded.seq",
        ("storage/test_postgres.py::test_E5_an_answer_lost_around_commit_lands_once",),
        "an operation whose commit landed unseen lands a second time",
    ),
    Mutant(
        "topics-locked-in-any-order",
        "storage/contract.py",
        "    return [(topic, count, largest) for topic, count in sorted(counts.items())]",
        "    return [(topic, count, largest) for topic, count in counts.items()]",
        ("storage/test_postgres.py::test_E6_an_append_that_waits_for_a_topic_holds_no_later_one",),
        "two appends to the same topics wait for each other's heads",
    ),
    Mutant(
        "postgres-queue-row-not-locked",
        "storage/sql/jobs.postgres.sql",
        "FROM queues WHERE name = :queue FOR UPDATE",
        "FROM queues WHERE name = :queue",
        ("workers/test_queue.py::test_C7_claimers_of_several_runtimes_never_share_a_job",),
        "two claims read the same ready jobs",
    ),
    Mutant(
        "lease-taken-while-it-lasts",
        "storage/sql/leases.sql",
        "WHERE leases.expires_at_ms <= :now",
        "WHERE leases.expires_at_ms <= :now + 1",
        (
            "storage/test_lease_operations.py::"
            "test_an_expired_lease_is_taken_over_with_a_higher_epoch",
        ),
        "a lease is taken over a millisecond before its holder stops",
    ),
    Mutant(
        "lease-keeps-its-epoch",
        "storage/sql/leases.sql",
        "epoch = leases.epoch + 1,",
        "epoch = leases.epoch,",
        (
            "storage/test_lease_operations.py::"
            "test_an_expired_lease_is_taken_over_with_a_higher_epoch",
        ),
        "the fencing token of a taken lease is that of its last holder",
    ),
    Mutant(
        "lease-renewed-by-an-old-epoch",
        "storage/sql/leases.sql",
        "WHERE name = :lease AND epoch = :epoch AND expires_at_ms > 0",
        "WHERE name = :lease AND epoch <= :epoch + 1 AND expires_at_ms > 0",
        (
            "storage/test_lease_operations.py::"
            "test_an_expired_lease_is_taken_over_with_a_higher_epoch",
        ),
        "a holder that lost its lease keeps it",
    ),
)
