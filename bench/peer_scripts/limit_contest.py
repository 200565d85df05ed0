"""Rate limits that never refuse: *n* acquires one after the other, *full* of them counting already.

Durability differs by nature, see `ratelimit_peers.py`.
"""

import time

from _tell import WHAT, began, main

LIMIT = 10**9
HOUR_MS = 3_600_000
AT = WHAT["home"] + "/limits.sqlite"
FULL = WHAT.get("full", 0)
BUCKETS = WHAT.get("buckets", 1)


async def bare(n):
    import apsw

    db = apsw.Connection(AT)
    db.set_busy_timeout(30_000)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("CREATE TABLE IF NOT EXISTS r (key TEXT, at INTEGER, units INTEGER)")
    db.execute("CREATE INDEX IF NOT EXISTS by_key ON r (key, at)")
    began()
    for _ in range(n):
        db.execute("BEGIN IMMEDIATE")
        for bucket in range(BUCKETS):
            db.execute("INSERT INTO r VALUES (?, ?, 1)", (f"k{bucket}", time.time_ns() // 1000))
        db.execute("COMMIT")


async def harn(n):
    from harn import Bucket, Runtime, durable_rate_limit_acquire

    async with Runtime():
        buckets = [Bucket(f"k{number}", LIMIT, window_ms=HOUR_MS) for number in range(BUCKETS)]
        await durable_rate_limit_acquire(buckets=buckets, state_path=AT)
        began()
        for _ in range(n):
            await durable_rate_limit_acquire(buckets=buckets, state_path=AT)


def pyrate_limiters():
    from pyrate_limiter import Limiter, Rate, SingleBucketFactory, SQLiteBucket

    now = time.time_ns() // 1_000_000
    limiters = []
    for number in range(BUCKETS):
        bucket = SQLiteBucket.init_from_file(
            [Rate(LIMIT, HOUR_MS)], db_path=f"{AT}{number}", use_file_lock=True
        )
        bucket.conn.executemany("INSERT INTO rate_bucket VALUES ('k', ?)", [(now,)] * FULL)
        bucket.conn.commit()
        limiters.append(Limiter(SingleBucketFactory(bucket, schedule_leak=False)))
    return limiters


async def pyrate(n):
    limiters = pyrate_limiters()
    began()
    for _ in range(n):
        for limiter in limiters:
            assert await limiter.try_acquire_async("k")


async def pyrate_processor_time(n):
    [limiter] = pyrate_limiters()
    for _ in range(10):
        assert await limiter.try_acquire_async("k")
    start = time.process_time()
    for _ in range(n):
        assert await limiter.try_acquire_async("k")
    return (time.process_time() - start) / n * 1e6


async def limits(n):
    from limits import RateLimitItemPerHour
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(MemoryStorage())
    item = RateLimitItemPerHour(LIMIT)
    began()
    for _ in range(n):
        for bucket in range(BUCKETS):
            assert await limiter.hit(item, str(bucket))


async def aiolimiter(n):
    from aiolimiter import AsyncLimiter

    limiters = [AsyncLimiter(LIMIT, 3600) for _ in range(BUCKETS)]
    began()
    for _ in range(n):
        for limiter in limiters:
            await limiter.acquire()


main(
    {
        "acquire": {
            "bare apsw": bare,
            "harn": harn,
            "pyrate-limiter": pyrate,
            "limits": limits,
            "aiolimiter": aiolimiter,
        },
        "processor time": {"pyrate-limiter": pyrate_processor_time},
    }
)
