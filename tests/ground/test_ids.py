from __future__ import annotations

import os
import uuid
from typing import Any

from hypothesis import given, strategies as st

from harn.ids import IdSource, digest, pool_id


def test_ids_are_version_7_uuids_that_sort_in_the_order_they_were_made() -> None:
    now = iter([1000, 1000, 1001, 900, 5000] + [5000] * 5000)
    source = IdSource(lambda: next(now))

    made = [source.uuid7() for _ in range(5005)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {uuid.UUID(each).version for each in made} == {7}
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}


def test_the_same_seed_and_clock_give_the_same_ids() -> None:
    def ids(seed: int | None) -> list[str]:
        source = IdSource(lambda: 1, seed)
        return [source.new("pool") for _ in range(10)]

    assert ids(7) == ids(7)
    assert ids(7) != ids(8)
    assert ids(None) != ids(None)


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    source = IdSource(lambda: 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, source.uuid7().encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 100).decode() != source.uuid7()


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_a_pools_id_is_the_same_only_for_the_same_names(first: Any, second: Any) -> None:
    clean = all("\0" not in part for part in first + second)
    assert (pool_id(*first) == pool_id(*second)) == (first == second) or not clean


def test_a_digest_takes_lone_surrogates_too() -> None:
    assert digest("\ud800") != digest("\ud801")
