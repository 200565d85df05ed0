"""harn against what users would pick instead, and against the bare floor. See `harness.py`."""
