"""Enqueueing in a transaction of SQLAlchemy's, over psycopg."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn import InvalidOption, Runtime, worker_queue

sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs the group `interop`")
asyncio_of = pytest.importorskip("sqlalchemy.ext.asyncio", reason="needs the group `interop`")


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[Any]:
    dsn = postgres_url.partition("?")[0].replace("postgresql://", "postgresql+psycopg://")
    engine = asyncio_of.create_async_engine(dsn)
    async with Runtime(storage=postgres_url):
        yield engine
    await engine.dispose()


async def ready() -> int:
    claims = await worker_queue("q").claim_many("worker", 10)
    return len(claims)


async def test_a_connection_enqueues_with_its_commit(engine: Any) -> None:
    async with engine.connect() as connection:
        receipt = await worker_queue("q").enqueue(1, connection=connection)
        assert await worker_queue("q").job(str(receipt.ticket)) is None
        await connection.commit()

    assert (await receipt.state()).payload == 1


async def test_a_session_enqueues_with_its_commit(engine: Any) -> None:
    async with asyncio_of.AsyncSession(engine) as session, session.begin():
        await session.execute(sqlalchemy.text("CREATE TEMPORARY TABLE orders (id int)"))
        await worker_queue("q").enqueue(1, tenant_id="acme", connection=session)
        assert await ready() == 0

    assert await ready() == 1


async def test_a_session_that_fails_enqueues_nothing(engine: Any) -> None:
    with contextlib.suppress(RuntimeError):
        async with asyncio_of.AsyncSession(engine) as session, session.begin():
            await worker_queue("q").enqueue(1, connection=session)
            raise RuntimeError

    assert await ready() == 0


async def test_an_engine_is_no_connection(engine: Any) -> None:
    with pytest.raises(InvalidOption, match="a psycopg AsyncConnection"):
        await worker_queue("q").enqueue(1, connection=engine)


async def test_a_connection_to_another_database_is_refused(
    engine: Any, postgres_server: str
) -> None:
    dsn = postgres_server.replace("postgresql://", "postgresql+psycopg://")
    other = asyncio_of.create_async_engine(dsn)
    async with other.connect() as connection:
        with pytest.raises(InvalidOption, match="the database of the runtime's store"):
            await worker_queue("q").enqueue(1, connection=connection)
    await other.dispose()
