"""A process with one leased child; what the child does goes to a ledger, line by line.

    python lease_holder.py URL LEDGER TTL_MS [block]

With `block` the child blocks its event loop for three times the lease's time to live.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import harn


def main() -> None:
    url, ledger, ttl_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
    blocks = "block" in sys.argv
    pen = os.open(ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def write(what: str, epoch: int | None) -> None:
        os.write(pen, f"{what} {os.getpid()} {epoch} {time.monotonic()}\n".encode())

    async def body(ctx: harn.ChildContext) -> None:
        write("began", ctx.lease_epoch)
        try:
            if blocks:
                time.sleep(3 * ttl_ms / 1000)
                write("unblocked", ctx.lease_epoch)
            await asyncio.get_running_loop().create_future()
        finally:
            write("ended", ctx.lease_epoch)

    async def run() -> None:
        lease = harn.Lease("captain", ttl_ms=ttl_ms)
        child = harn.Child("captain", body, active_lease=lease)
        sup = await harn.supervisor_start(children=[child])
        reason = None
        while True:
            seen = sup.state().children[0].current_wait_reason
            if seen != reason:
                reason = seen
                if reason == "lease":
                    write("waits", None)
            await harn.sleep("5ms")

    harn.run(run, storage=url)


if __name__ == "__main__":
    main()
