"""file://: the store is a directory of JSONL files, with indexes in memory.

file_driver.py     the engine: a thread that folds what other processes wrote
file_log.py        the log in files: one for each topic, and the commit journal
topic_file.py      the file of one topic
commit_journal.py  what makes a commit to several topics one
commit_recovery.py a commit's parts, written to the topics' files after a crash
damage.py          damaged bytes, named and kept aside
"""

from __future__ import annotations

from harn.storage.engines.file.file_driver import FileDriver

__all__ = ["FileDriver"]
