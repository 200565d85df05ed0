"""The event log: topics of numbered records, which everything else is folded from.

events.py          append, read, and consumers' cursors
export.py          a store as JSONL, and back
trim.py            removing old records; holding.py, what must stay; trimmed.py, what is gone
rebuild.py         verify the indexes against the log, or fold them again
"""
