"""Faults in tasks, sync primitives and supervisors: hand-on after a cancel, errors, leases."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "permit-queue-misses-a-finalisers-release",
        "sync/permit_queue.py",
        "            queue.serve(queue.monotonic())",
        "            pass",
        (
            "sync/test_permits.py::"
            "test_a_permit_released_by_a_finaliser_while_a_caller_joins_the_queue_is_granted",
        ),
        "a permit that a finaliser releases as a caller joins the queue is never granted",
    ),
    Mutant(
        "permit-queue-grant-dies-with-its-waiter",
        "sync/permit_queue.py",
        "            self.acquisitions -= 1\n            self.release(waiter, now)",
        "            self.acquisitions -= 1",
        ("sync/test_cancel.py::test_Y3_a_granted_waiter_that_is_cancelled_hands_on",),
        "a permit granted to a cancelled waiter is lost",
    ),
    Mutant(
        "permit-queue-head-that-left-still-blocks",
        "sync/permit_queue.py",
        "            self.serve(now)  # it may have blocked smaller requests behind it",
        "            pass",
        ("sync/test_permits.py::test_a_timed_out_head_lets_those_behind_it_pass",),
        "a large request that gave up holds back the small ones behind it",
    ),
    Mutant(
        "permit-queue-newcomer-overtakes",
        "sync/permit_queue.py",
        "self.free >= waiter.want and (not self.queued or self.waiters.first() is None):",
        "self.free >= waiter.want:",
        ("sync/test_permits.py::test_Y2_a_request_for_many_is_not_overtaken",),
        "a writer waits forever behind readers that came later",
    ),
    Mutant(
        "withdrawn-waiter-is-never-granted",
        "sync/wait_queue.py",
        "        granted = self.state == GRANTED\n        self.state = GONE",
        "        granted = False\n        self.state = GONE",
        ("sync/test_cancel.py::test_Y3_a_cancelled_acquire_holds_nothing",),
        "whatever was granted to a cancelled waiter is lost",
    ),
    Mutant(
        "channel-receiver-takes-its-promise-along",
        "sync/channel.py",
        "                self._promised -= 1\n                self._promise_values()",
        "                self._promised -= 1",
        ("sync/test_cancel.py::test_H2_a_woken_receiver_that_is_cancelled_wakes_the_next",),
        "a value waits in the channel beside a receiver that sleeps",
    ),
    Mutant(
        "channel-sender-takes-its-room-along",
        "sync/channel.py",
        "                self._promised_room -= 1\n                self._promise_room()",
        "                self._promised_room -= 1",
        ("sync/test_cancel.py::test_H2_a_woken_sender_that_is_cancelled_wakes_the_next",),
        "there is room in the channel beside a sender that sleeps",
    ),
    Mutant(
        "scope-raises-the-last-error",
        "tasks/scope.py",
        "        chosen = cancel or (self._errors[0] if self._errors else None)",
        "        chosen = cancel or (self._errors[-1] if self._errors else None)",
        (
            "tasks/test_scope.py::"
            "test_N2_the_first_failure_in_time_is_raised_itself_and_the_others_are_notes",
        ),
        "what made the others fail is a note on what they said",
    ),
    Mutant(
        "scope-swallows-a-cancel",
        "tasks/scope.py",
        "        return self._host.uncancel() > self._cancels_before",
        "        return self._host.uncancel() > self._cancels_before + 1",
        ("tasks/test_scope.py::test_N2_a_cancel_wins_over_a_child_that_fails_in_the_same_moment",),
        "a cancel from outside is lost when a child fails in the same moment",
    ),
    Mutant(
        "lease-held-to-its-very-end",
        "storage/leases/lease_renewal.py",
        "    return since + ttl * (1 - MARGIN)",
        "    return since + ttl * (1 + MARGIN)",
        (
            "supervisors/test_leases.py::"
            "test_U6_a_lease_that_cannot_be_renewed_is_lost_before_it_ends",
        ),
        "a child still runs when another process may take its lease",
    ),
    Mutant(
        "lease-counts-from-its-answer",
        "storage/leases/lease_renewal.py",
        "        self._asked = now  #",
        "        self._asked = self._clock.monotonic()  #",
        ("supervisors/test_leases.py::test_U6_a_lease_counts_from_when_its_renewal_was_asked_for",),
        "a slow answer makes a lease last longer here than in the store",
    ),
    Mutant(
        "shield-is-never-lifted",
        "graceful_stop.py",
        "        task.shielded -= 1",
        "        pass",
        (
            "ground/test_graceful_stop.py::test_a_stop_that_was_held_back_is_raised_in_the_next_wait",
        ),
        "a daemon agent that was asked to stop during a turn never hears of it",
    ),
    Mutant(
        "fork-forgets-the-parents-runtime",
        "open_runtimes.py",
        "any(not each.loop.is_closed() for each in _open)",
        "False",
        (
            "ground/test_open_runtimes.py::"
            "test_a_forked_child_is_refused_its_parents_runtime_and_opens_its_own",
        ),
        "a forked process puts its jobs into a store in memory, without a word",
    ),
)
