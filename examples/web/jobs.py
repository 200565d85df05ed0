"""The work of the web applications beside this file. Start a worker for it:

    cd examples/web
    harn worker jobs --queue reviews --storage sqlite:///reviews.sqlite

The applications and the worker share the store, and nothing else.
"""

import os

from harn import durable

STORAGE = os.environ.get("HARN_STORAGE", "sqlite:///reviews.sqlite")


@durable
async def review(text: str) -> str:
    return f"{len(text.split())} words"  # ask your model here
