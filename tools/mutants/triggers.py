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
        "rows[0][0] != owner:\n        return False\n    yield from write(drafts)",
        "False:\n        return False\n    yield from write(drafts)",
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
        'Refused("no single id, time and signature")\n    if late := _off(time, now_s):',
        'Refused("no single id, time and signature")\n    if late := None:',
        ("triggers/test_signatures.py::test_S4_each_known_trick_is_refused",),
        "a captured Standard Webhooks request can be sent again forever",
    ),
)
