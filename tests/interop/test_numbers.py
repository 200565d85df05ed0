"""numpy and pandas: their values are no JSON, and the error says how to send them."""

from __future__ import annotations

from typing import Any

import pytest

from harn import InvalidOption, Runtime, worker_queue
from harn.llm.tools import as_text

np: Any = pytest.importorskip("numpy", reason="needs the group `interop`")
pd: Any = pytest.importorskip("pandas", reason="needs the group `interop`")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array([1, 2]), r"payload.x is a ndarray; send its tolist\(\)"),
        (np.int64(3), r"payload.x is a int64; send its tolist\(\)"),
        (np.bool_(True), r"payload.x is a bool_?; send its tolist\(\)"),
        (np.datetime64("2026-01-01"), r"payload.x is a datetime64; send its tolist\(\)"),
        (pd.DataFrame({"a": [1]}), r"payload.x is a DataFrame; send its to_dict\('records'\)"),
        (pd.Series([1]), r"payload.x is a Series; send its tolist\(\)"),
        (pd.Timestamp("2026-01-01"), r"payload.x is a Timestamp; send its isoformat\(\)"),
        (pd.NA, "payload.x is a NAType; send null"),
    ],
)
async def test_a_value_is_refused_with_the_way_to_send_it(
    runtime: Runtime, value: Any, said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        await worker_queue("numbers").enqueue({"x": value})


async def test_what_they_are_sent_as_is_accepted(runtime: Runtime) -> None:
    queue = worker_queue("numbers")

    await queue.enqueue(np.array([1, 2]).tolist())
    await queue.enqueue(pd.DataFrame({"a": [1]}).to_dict("records"))
    receipt = await queue.enqueue({"x": np.float64(1.5)})  # it is a float of Python

    assert receipt.job_id == 3


def test_a_tool_that_returns_a_table_shows_it_as_text() -> None:
    assert as_text(pd.DataFrame({"a": [1]})).split() == ["a", "0", "1"]
