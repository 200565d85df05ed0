"""Worker queues: jobs are records of the log, their state is an index beside it.

claim.py           enqueue and claim
settle.py          what ends a claim or a job
job_records.py     what travels between a queue and its callers
job_index.py       the queue's tables; job_fold.py, the same tables from the log
job_views.py       what can be seen of a queue
dead_jobs.py       what goes to the dead letters when a job has no attempt left
"""
