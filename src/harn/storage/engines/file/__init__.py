"""file://: the store is a directory of JSONL files, with indexes in memory.

file_driver.py     the engine: a thread that folds what other processes wrote
file_log.py        the log in files: its transactions, under one lock
log_statements.py  the log's statements, answered from the files
topic_files.py     the files of all topics; topic_file.py, the file of one
commit_journal.py  what makes a commit to several topics one
commit_recovery.py a commit's parts, written to the topics' files after a crash
damage_reports.py  what was found damaged: logged, listed, and kept aside
byte_repair.py     the repair of a line with one wrong byte
"""

from __future__ import annotations

from harn.storage.engines.file.file_driver import FileDriver

__all__ = ["FileDriver"]
