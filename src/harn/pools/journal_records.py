"""The lines of a pipeline pool's journal, and the state that they add up to.

A line is one JSON object that ends in its own checksum: `{"kind": ..., "v": 1, ..., "crc": "..."}`.
The first line is the `pool`. Then there are `task` (a submit, or the state of a task at the last
compaction), `tasks` (calls that were submitted together: one line, so that a torn write keeps all
of them or none), `start`, `step`, `end`, and `withdraw` for submits that were cancelled before they
were acknowledged. `fold` reads lines into a `JournalState`; nothing here uses a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from harn.errors import StorageCorrupt, StorageVersion
from harn.storage import jsonl

LONGEST_RESULT = 1000
"""The most characters of a result that is not JSON, and so is kept as text."""
VERSION = 1
TOGETHER = 2
"""The version of a line about several tasks, which harn 0.1 cannot read."""


class PoolRecord(msgspec.Struct, tag_field="kind", tag="pool", omit_defaults=True):
    """The pool of the journal, its last task number, and counts of tasks that were dropped."""

    v: int
    id: str
    name: str
    scope: str
    scope_id: str
    max_concurrent: int
    created_at: int
    submit_counter: int
    dropped: dict[str, int] = {}


class StepLine(msgspec.Struct, tag_field="kind", tag="step"):
    """A step of a durable call that has ended, with its result."""

    v: int
    seq: int
    name: str
    number: int
    call: str
    at: int
    ms: int
    result: msgspec.Raw


class TaskRecord(msgspec.Struct, tag_field="kind", tag="task", omit_defaults=True):
    """A task as it was submitted, or as it was when the journal was compacted.

    Labels and steps are None, not empty: a record without containers is none of the garbage
    collector's business, and a long journal opens in two thirds of the time.
    """

    v: int
    seq: int
    id: str
    submitted_at: int
    submitted_by: str = "user"
    status: str = "queued"
    priority: int = 0
    key: str | None = None
    labels: dict[str, str] | None = None
    idempotency_key: str | None = None
    tenant_id: str | None = None
    call: str | None = None
    """The name of a durable function, which can be run again with *args*."""
    args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    started_at: int | None = None
    finished_at: int | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result_text: str | None = None
    result_omitted: bool = False
    """Whether *result_text* stands for a result that is not JSON."""
    error: str | None = None
    rejection_reason: str | None = None
    rejection_policy: str | None = None
    stale_reason: str | None = None
    steps: list[StepLine] | None = None
    """The steps of a durable call that has not ended."""


class StartRecord(msgspec.Struct, tag_field="kind", tag="start"):
    """The task's closure is about to run."""

    v: int
    seq: int
    at: int


class EndRecord(msgspec.Struct, tag_field="kind", tag="end", omit_defaults=True):
    """The task has reached its last status."""

    v: int
    seq: int
    at: int
    status: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result_text: str | None = None
    result_omitted: bool = False
    """Whether *result_text* stands for a result that is not JSON."""
    error: str | None = None
    rejection_reason: str | None = None
    rejection_policy: str | None = None
    stale_reason: str | None = None


class WithdrawRecord(msgspec.Struct, tag_field="kind", tag="withdraw", omit_defaults=True):
    """The submit was cancelled before it was acknowledged, and *more* that was made with it."""

    v: int
    seq: int
    more: list[int] = []


class TasksRecord(msgspec.Struct, tag_field="kind", tag="tasks"):
    """Tasks that were submitted together."""

    v: int
    tasks: list[TaskRecord]


Record = PoolRecord | TaskRecord | StartRecord | StepLine | EndRecord | WithdrawRecord | TasksRecord

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class _Versioned(msgspec.Struct):
    v: int = 0


_version_decoder = msgspec.json.Decoder(_Versioned)


def encode(record: Record) -> bytes:
    """Return *record* as a line, with its checksum at the end."""
    return jsonl.seal(_encoder.encode(record)[:-1])


def decode(text: bytes) -> Record:
    """Read a line whose checksum is right; raise `StorageCorrupt` if it is not a record.

    A line of another version raises `StorageVersion`.
    """
    try:
        record: Record = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse_newer(text)
        raise StorageCorrupt(str(error)) from None
    if record.v not in (VERSION, TOGETHER):
        raise StorageVersion(f"is of version {record.v}; this harn reads up to {TOGETHER}")
    return record


def _refuse_newer(line: bytes) -> None:
    try:
        version = _version_decoder.decode(line).v
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if version > TOGETHER:
        raise StorageVersion(f"is of version {version}; this harn reads up to {TOGETHER}")


@dataclass(slots=True)
class JournalState:
    """The state of a journal: its pool, its tasks, and its damaged lines."""

    pool: PoolRecord | None = None
    tasks: dict[int, TaskRecord] = field(default_factory=dict)
    ended: dict[int, None] = field(default_factory=dict)
    """The numbers of ended tasks, in the order of their end."""
    damage: list[jsonl.Damage] = field(default_factory=list)
    last_seq: int = 0
    lines: int = 0

    def apply(self, record: Record) -> None:  # noqa: C901  # a short branch for each kind
        """Apply *record*; raise `StorageCorrupt` if it names an unknown task."""
        if type(record) is TaskRecord:
            self.tasks[record.seq] = record
            if record.seq > self.last_seq:
                self.last_seq = record.seq
            if record.finished_at is not None:
                self.ended[record.seq] = None
        elif type(record) is StartRecord:
            task = self._task(record.seq)
            task.status, task.started_at = "running", record.at
        elif type(record) is StepLine:
            task = self._task(record.seq)
            if task.steps is None:
                task.steps = []
            task.steps.append(record)
        elif type(record) is EndRecord:
            self._end(self._task(record.seq), record)
        elif type(record) is PoolRecord:
            self.pool = record
            self.last_seq = max(self.last_seq, record.submit_counter)
        elif type(record) is WithdrawRecord:
            for seq in (record.seq, *record.more):
                self.tasks.pop(seq, None)
                self.ended.pop(seq, None)
        elif type(record) is TasksRecord:
            for each in record.tasks:
                self.apply(each)

    def _task(self, seq: int) -> TaskRecord:
        task = self.tasks.get(seq)
        if task is None:
            raise StorageCorrupt(f"it names task {seq}, which the journal does not have")
        return task

    def _end(self, task: TaskRecord, end: EndRecord) -> None:
        task.status = end.status
        task.finished_at = end.at
        task.result = end.result
        task.result_text = end.result_text
        task.result_omitted = end.result_omitted
        task.error = end.error
        task.rejection_reason = end.rejection_reason
        task.rejection_policy = end.rejection_policy
        task.stale_reason = end.stale_reason
        task.steps = None
        self.ended[task.seq] = None

    def drop_old(self, count: int, before_ms: int) -> None:
        """Drop ended tasks beyond the newest *count*, and those that ended before *before_ms*."""
        assert self.pool is not None
        spare = len(self.ended) - count
        dropped = dict(self.pool.dropped)
        for seq in list(self.ended):
            task = self.tasks[seq]
            if spare <= 0 and (task.finished_at or 0) >= before_ms:
                break
            spare -= 1
            del self.ended[seq], self.tasks[seq]
            dropped[task.status] = dropped.get(task.status, 0) + 1
        self.pool.dropped = dropped

    def as_lines(self) -> Iterator[bytes]:
        """Yield the fewest lines that have this state."""
        assert self.pool is not None
        self.pool.submit_counter = self.last_seq
        yield encode(self.pool)
        for seq in self.ended:  # in the order of their end, by which retention drops them
            yield encode(self.tasks[seq])
        for seq, task in self.tasks.items():
            if seq not in self.ended:
                yield encode(task)


def fold(chunks: Iterable[bytes], start: int = 0) -> tuple[JournalState, int]:
    """Read a journal from byte *start*; return its state and the end of its last complete line.

    *chunks* are its bytes, in pieces of any length. A damaged line is added to `damage`, and the
    rest is read. Bytes after the end are torn: part of a line that was never acknowledged.
    """
    state, end = JournalState(), start
    apply, damage = state.apply, state.damage
    for offset, line, text in jsonl.read_lines(chunks, start):
        try:
            if text is not None:
                apply(decode(text))
            else:
                if not state.lines:  # a newer harn may have another kind of checksum
                    _refuse_newer(line)
                if not line.endswith(b"\n"):
                    break
                if line.strip():
                    damage.append(jsonl.Damage(offset, "the checksum does not match", line))
        except StorageCorrupt as error:
            damage.append(jsonl.Damage(offset, str(error), line))
        end = offset + len(line)
        state.lines += 1
    return state, end
