"""What triggers store: events on their way, dedupe keys, schedules, gates and circuits.

inbox.py           events on their way, dedupe keys, schedules, dead letters
gate_marks.py      what gates and circuits decide
trigger_fold.py    the triggers' tables, from the log
"""
