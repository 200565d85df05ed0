"""Faults in the limiter: window sums, corrections, the line, the leases of its owners."""

from tools.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "neighbours-wait-for-each-other",
        "ratelimit/transaction.py",
        "                return False\n        return True\n\n    def _room_at",
        "                return False\n        return False\n\n    def _room_at",
        (
            "ratelimit/test_neighbours.py::"
            "test_R7_a_silent_neighbour_holds_up_no_caller_while_there_is_room_for_both",
        ),
        "with room for all, each process waits until the one ahead of it has been served",
    ),
    Mutant(
        "clock-set-back-keeps-a-dead-owner",
        "ratelimit/ticket_lines.py",
        "        if head.until_us > self.now + LEASE_US:",
        "        if False:",
        (
            "ratelimit/test_neighbours.py::"
            "test_a_clock_that_is_set_back_keeps_no_silent_neighbour_in_line",
        ),
        "after the clock was set back a dead process holds its place for as long as that",
    ),
    Mutant(
        "owner-outlives-its-lease",
        "ratelimit/ticket_lines.py",
        "head.until_us <= self.now or self.is_gone(head.owner):",
        "head.until_us < self.now - 1_000_000 or self.is_gone(head.owner):",
        (
            "ratelimit/test_neighbours.py::"
            "test_R7_a_process_that_falls_silent_loses_its_place_after_its_lease",
        ),
        "a silent process holds the line after its lease",
    ),
    Mutant(
        "window-frees-too-late",
        "ratelimit/window.py",
        "            if expires > now:\n                self.head_us = expires",
        "            if expires >= now:\n                self.head_us = expires",
        ("ratelimit/test_window.py::test_R1_one_rule_admits_exactly_what_the_model_admits",),
        "units that expire now still count",
    ),
    Mutant(
        "window-admits-one-too-many",
        "ratelimit/window.py",
        "over = rule.live + charge - rule.limit",
        "over = rule.live + charge - rule.limit - 1",
        ("ratelimit/test_window.py",),
        "a window holds one unit more than its limit",
    ),
    Mutant(
        "oversize-does-not-wait",
        "ratelimit/window.py",
        "charge = min(charge, self.most) + ahead",
        "charge = min(charge, self.most - 1) + ahead",
        (
            "ratelimit/test_window.py::test_R4_an_oversize_charge_waits_for_an_empty_window_and_fills_it",
        ),
        "a charge larger than the limit passes a window that is not empty",
    ),
    Mutant(
        "oversize-charges-all",
        "ratelimit/window.py",
        "        charge = min(charge, self.most)\n        expires",
        "        expires",
        (
            "ratelimit/test_window.py::test_R6_what_is_oversize_for_the_stricter_rule_charges_one_full_window_of_it",
        ),
        "a charge larger than the limit counts for more than one window",
    ),
    Mutant(
        "settle-adds-instead-of-replacing",
        "ratelimit/window.py",
        "        self.live += to - units",
        "        self.live += to",
        ("ratelimit/test_limiter.py::test_settling_down_frees_units_for_waiting_callers",),
        "a settled reservation counts with what was reserved as well",
    ),
    Mutant(
        "settle-down-wakes-no-caller",
        "ratelimit/store_limiter.py",
        "        self._callers.wake_first(each.want.key for each in corrections)",
        "        self._callers.wake_first(())",
        ("ratelimit/test_limiter.py::test_settling_down_frees_units_for_waiting_callers",),
        "units that were freed are found only when the next timer comes",
    ),
    Mutant(
        "settle-up-is-ignored",
        "ratelimit/window.py",
        "        self.live += to - units",
        "        self.live += min(to, units) - units",
        ("ratelimit/test_limiter.py::test_settling_up_only_delays_what_comes_next",),
        "what a call cost beyond its reservation is not counted",
    ),
    Mutant(
        "cancelled-grant-not-refunded",
        "ratelimit/store_limiter.py",
        "Correction(want, row[0], row[1], granted.at, 0)",
        "Correction(want, row[0], row[1], granted.at, want.charge)",
        ("ratelimit/test_limiter.py::test_G7_wherever_it_is_cancelled_an_acquire_leaves_nothing",),
        "an acquire that was cancelled as it was granted keeps its units",
    ),
    Mutant(
        "cancelled-caller-does-not-hand-on",
        "ratelimit/waiting_callers.py",
        "        self.wake_first(want.key for want in caller.wants)",
        "        self.wake_first(())",
        ("ratelimit/test_limiter.py::test_a_cancelled_acquire_leaves_no_place_in_line",),
        "the caller behind a cancelled one is not asked for",
    ),
)
