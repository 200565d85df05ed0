"""Telemetry: spans, metrics and log lines.

spans.py       spans and links for OpenTelemetry, at no cost while nothing listens
metrics.py     every Prometheus family, and the registry that collects them
logs.py        log lines that say which task was running
tracebacks.py  the traceback of a failure, as text that fits into a record
html.py        small tables for notebooks
"""
