"""harn.toml: what is read, and that every mistake is named with its place."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from harn import ManifestError
from harn.llm.registry import load_entries
from harn.orchestrator import ManifestProblems, read_manifest

CONSUMER = """
[exports]
handlers = "lib.py"

[[triggers]]
id = "incoming-review-task"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "handlers::on_task"
"""
PRODUCER = """
[[triggers]]
id = "incoming-review-task"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "worker://triage"
priority = "high"
"""
LIB = """
from harn import SpawnToPool

def on_task(event):
    return event.id

router = SpawnToPool("work", lambda event: lambda: event.id)
number = 5
_private = print
"""


def write(tmp_path: Path, text: str, lib: str = LIB) -> Path:
    (tmp_path / "lib.py").write_text(lib)
    path = tmp_path / "harn.toml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ManifestProblems) as found:
        read_manifest(write(tmp_path, text))
    return [str(problem) for problem in found.value.problems]


@pytest.mark.parametrize("text", [CONSUMER, PRODUCER])
def test_the_specs_two_manifests_are_read(tmp_path: Path, text: str) -> None:
    manifest = read_manifest(write(tmp_path, text))

    [trigger] = manifest.triggers
    assert trigger.id == "incoming-review-task"
    assert trigger.is_local is (text is CONSUMER)
    assert trigger.priority == ("normal" if text is CONSUMER else "high")
    assert manifest.bound(trigger, manifest.resolver()).provider == "a2a-push"


def test_a_handler_is_a_function_or_a_ready_handler_of_an_export(tmp_path: Path) -> None:
    for name, kind in (("on_task", "local"), ("router", "spawn_to_pool")):
        manifest = read_manifest(write(tmp_path, CONSUMER.replace("on_task", name)))

        assert manifest.bound(manifest.triggers[0], manifest.resolver()).target.kind == kind


@pytest.mark.parametrize("source", ["lib", "collections.abc"])
def test_an_export_may_be_a_module_or_a_plain_name_beside_the_manifest(
    tmp_path: Path, source: str
) -> None:
    name = "on_task" if source == "lib" else "Callable"
    text = CONSUMER.replace("lib.py", source).replace("on_task", name)
    manifest = read_manifest(write(tmp_path, text))

    assert manifest.bound(manifest.triggers[0], manifest.resolver())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("on_taks", "did you mean 'on_task'"),
        ("number", "not a function"),
        ("nothing", "has no 'nothing'"),
    ],
)
def test_S2_a_handler_that_is_not_there_is_named(tmp_path: Path, name: str, said: str) -> None:
    manifest = read_manifest(write(tmp_path, CONSUMER.replace("on_task", name)))

    with pytest.raises(ManifestError, match=said):
        manifest.bound(manifest.triggers[0], manifest.resolver())


@pytest.mark.parametrize(
    "name", ["_private", "__import__", "on_task.__globals__", "a::b", "", "os.system"]
)
def test_S2_only_public_names_are_handlers(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError):
        read_manifest(write(tmp_path, CONSUMER.replace("on_task", name)))


@pytest.mark.parametrize(
    "source", ["../x.py", "/etc/x.py", "a/../../x.py", "x y", "", "os;system", ".hidden"]
)
def test_S2_an_export_lies_beside_the_manifest(tmp_path: Path, source: str) -> None:
    assert problems(tmp_path, f'[exports]\nhandlers = "{source}"\n')


def test_S2_a_file_beside_the_manifest_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    lib = "import json\ndef on_task(event):\n    return json.dumps(1)\n"
    manifest = read_manifest(write(tmp_path, CONSUMER, lib))

    assert manifest.bound(manifest.triggers[0], manifest.resolver()).target.fn(None) == "1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("lib", ["raise SystemExit(3)", "import no_such_module", "def f(:", "1/0"])
def test_an_export_that_cannot_be_imported_is_a_clear_error(tmp_path: Path, lib: str) -> None:
    manifest = read_manifest(write(tmp_path, CONSUMER, lib))

    with pytest.raises(ManifestError, match=r"lib\.py cannot be imported"):
        manifest.bound(manifest.triggers[0], manifest.resolver())


def test_S2_a_manifest_that_every_user_can_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, CONSUMER)
    path.chmod(0o666)

    with pytest.raises(ManifestError, match="written by every user"):
        read_manifest(path)


def test_every_mistake_is_told_with_its_line_and_a_suggestion(tmp_path: Path) -> None:
    text = """
[serv]
[exports]
handlers = "lib.py"
[[triggers]]
id = "ok"
kind = "cron"
provider = "cron"
match = { schedule = "0 2 * * *" }
handler = "handlers::on_task"
[[triggers]]
id = "bad"
kind = "webhok"
provider = "github"
match = { event = ["push"] }
handler = "handler::on_push"
throtle = { max = 1, period = "1m" }
debounce = { period = "0s" }
retry = { max = 1000, backoff = "svx" }
"""
    found = problems(tmp_path, text)

    assert found == [
        "harn.toml: serv: no such table; did you mean 'serve'?",
        "harn.toml:17: triggers[1].throtle: no such key; did you mean 'throttle'?",
        "harn.toml:13: triggers[1].kind: 'webhok': one of channel.emit, cron, webhook, a2a-push, stream; did you mean 'webhook'?",  # noqa: E501
        "harn.toml:15: triggers[1].match.event: ['push']: no such key; did you mean 'events'?",
        "harn.toml:18: triggers[1].debounce.period: '0s': a duration greater than zero",
        'harn.toml:19: triggers[1].retry.backoff: \'svx\': "immediate", "svix", "linear" or "exponential"; did you mean \'svix\'?',  # noqa: E501
        "harn.toml:19: triggers[1].retry.max: 1000: a whole number from 0 to 100",
        "harn.toml:16: triggers[1].handler: [exports] has no 'handler'; did you mean 'handlers'?",
    ]


TRIGGER = '[[triggers]]\nid = "t"\nkind = "webhook"\nprovider = "github"\nhandler = "worker://q"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "no such table"),
        ("[triggers]\nid = 1", "[[triggers]]"),
        ("[[triggers]]\n", "is missing"),
        (TRIGGER + TRIGGER, "is also triggers[0]"),
        (TRIGGER + 'path = "hooks"\n', "a path such as"),
        (
            TRIGGER + 'path = "/a"\n' + TRIGGER.replace('"t"', '"u"') + 'path = "/a"\n',
            "is also 't'",
        ),
        (TRIGGER + 'secrets = { signing = "whsec_abcdefgh" }\n', "not the secret itself"),
        (TRIGGER + 'secrets = { sining = "A" }\n', "did you mean 'signing'"),
        (TRIGGER + 'schedule = "* * * * *"\n', "only for kind 'cron'"),
        (TRIGGER.replace("github", "githup"), "did you mean 'github'"),
        (TRIGGER.replace("worker://q", "wrker://q"), "did you mean 'worker'"),
        (TRIGGER.replace("worker://q", "worker://queues"), "queues"),
        (TRIGGER.replace("worker://q", "a2a://u:p@h/"), "without user"),
        (TRIGGER.replace('"worker://q"', '{ pool = "p" }'), "task_factory"),
        (TRIGGER.replace('"worker://q"', '{ pol = "p" }'), "did you mean 'pool'"),
        (TRIGGER + 'priority = "urgent"\n', "priority"),
        (TRIGGER + 'batch = { size = 2, timeout = "1s" }\nsingleton = true\n', "no other gate"),
        (TRIGGER + 'tenant_id = ""\n', "tenant_id"),
        (TRIGGER + 'tenant_id = "a\\nb"\n', "tenant_id"),
        ('[serve]\nbind = "nowhere"\n', "host:port"),
        ('[serve]\nbind = "127.0.0.1:00000070000"\n', "host:port"),
        ('[serve]\nkeys = ["not a name"]\n', "environment variable"),
        ("[serve]\nqueues = [1]\n", "queues' names"),
        ('[a2a]\nallow = ["x y"]\n', "host name or a network"),
        ('[orchestrator]\nsetup = "x"\n', "export::function"),
        ('[orchestrator]\nsetup = "x::y"\n', "has no 'x'"),
        ("= broken", "not TOML"),
        ("[" * 3000, "not TOML"),
        (TRIGGER.replace('"t"', '"../x"'), "id"),
        (TRIGGER.replace('"webhook"', '"cron"').replace('"github"', '"cron"'), "schedule"),
        (TRIGGER.replace('"webhook"', '"stream"').replace('"github"', '"stream"'), "topic"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in " / ".join(problems(tmp_path, text))


def test_S13_a_secret_written_by_mistake_is_not_repeated(tmp_path: Path) -> None:
    found = problems(tmp_path, TRIGGER + 'secrets = { signing = "whsec_abcdefgh" }\n')

    assert "abcdefgh" not in str(found)


@pytest.mark.parametrize("bytes_", [b"\xff\xfe", b"\x00", b"a" * 2_000_000])
def test_what_is_no_text_is_refused(tmp_path: Path, bytes_: bytes) -> None:
    path = tmp_path / "harn.toml"
    path.write_bytes(bytes_)

    with pytest.raises(ManifestError):
        read_manifest(path)


@pytest.mark.parametrize("path", ["no/such.toml", "\0", ".", "/dev/null"])
def test_a_manifest_that_cannot_be_read_is_a_clear_error(path: str) -> None:
    with pytest.raises(ManifestError):
        read_manifest(path)


def test_a_byte_order_mark_is_not_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, CONSUMER)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert read_manifest(path).triggers


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    "5",
    "",
    "x" * 300,
    "../../x",
    "a\x00b",
    "\u202e",
    "é",
    [],
    {},
    [1],
    {"a": 1},
]


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False))
def test_G14_no_odd_value_makes_reading_fail_otherwise(
    tmp_path: Path, chance: random.Random
) -> None:
    table: dict[str, Any] = {
        "id": "t", "kind": "channel.emit", "provider": "channel", "handler": "handlers::on_task", "match": {"events": ["channel:x"]},  # noqa: E501
        "throttle": {"max": 1, "period": "1s"}, "retry": {"max": 1}, "concurrency": {"max": 1}, "priority": {"key": "kind", "order": ["a"]},  # noqa: E501
    }  # fmt: skip
    key = chance.choice(
        [*table, "secrets", "path", "tenant_id", "singleton", "batch", "schedule", "dedupe_key"]
    )
    inner = table.get(key)
    if isinstance(inner, dict) and inner and chance.random() < 0.7:
        inner[chance.choice(sorted(inner))] = chance.choice(ODD)
    else:
        table[key] = chance.choice(ODD)
    text = '[exports]\nhandlers = "lib.py"\n[[triggers]]\n' + "".join(
        f"{name} = {toml(value)}\n" for name, value in table.items() if value is not None
    )
    tomllib.loads(text)
    try:
        manifest = read_manifest(write(tmp_path, text))
    except ManifestError:
        return
    assert manifest.triggers


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        inner = ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items() if v is not None)
        return "{ " + inner + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(each) for each in value if each is not None) + "]"
    if isinstance(value, str):
        escaped = "".join(
            c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in value
        )
        return f'"{escaped}"'
    if isinstance(value, int) and value >= 2**63:
        return str(2**63 - 1)
    return str(value)


def test_a_manifest_may_hold_the_providers_that_model_calls_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harn.toml").write_text(
        '[providers.local]\nkind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'
    )
    monkeypatch.chdir(tmp_path)

    assert read_manifest(tmp_path).triggers == ()
    assert list(load_entries(None)) == ["local"]
