"""`harn.toml`: read into frozen records; every mistake is reported with its place.

    [exports]                    name = "file.py" beside the manifest, or a module
    [orchestrator]               setup = "handlers::setup", called before triggers start;
                                 pipeline = "name" of the pipeline, by default the directory's
    [serve]                      bind, keys, queues
    [a2a]                        allow: hosts and networks that are not public; card
    [[triggers]]                 id, kind, provider, match, handler, gates, retry, secrets ...

Reading imports nothing; `bound` imports a handler before it is to run.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import InvalidOption, ManifestError, did_you_mean
from harn.naming import check_name
from harn.option_checks import read_whole
from harn.orchestrator.agent_card import CardOptions, check_card
from harn.orchestrator.manifest_errors import ManifestProblems, Problem, Problems
from harn.orchestrator.manifest_exports import Exports, check_source, split_reference
from harn.orchestrator.manifest_triggers import (
    ManifestTrigger,
    binding_of,
    check_handlers,
    handler_of,
    read_triggers,
    route_of,
)
from harn.orchestrator.secret_names import SecretName, check_secrets
from harn.private_files import check_private

if TYPE_CHECKING:
    from harn.triggers import Binding

MOST_BYTES = 1024 * 1024
TABLES = ("exports", "orchestrator", "serve", "a2a", "providers", "budgets", "triggers")
"""The tables of a manifest; `[providers]` and `[budgets]` are read at the first call to a model."""
DEFAULT_BIND = "127.0.0.1:8080"
LONGEST_PIPELINE = 128
NO_DIRECTORY = "harn"
"""The pipeline of a manifest in the root directory, which has no name."""


class ServeOptions(msgspec.Struct, frozen=True):
    """The `[serve]` table: the address, the operators' keys, the queues to consume."""

    bind: str = DEFAULT_BIND
    keys: tuple[SecretName, ...] = ()
    queues: tuple[str, ...] | None = None
    """None: every queue that has work for a trigger of this manifest."""


class Manifest(msgspec.Struct, frozen=True):
    """A whole manifest."""

    path: Path
    exports: Mapping[str, str]
    triggers: tuple[ManifestTrigger, ...]
    serve: ServeOptions = ServeOptions()
    setup: str | None = None
    a2a_allow: tuple[str, ...] = ()
    card: CardOptions = msgspec.field(default_factory=CardOptions)
    pipeline: str | None = None
    """The pipeline's name, if the manifest has one; see `pipeline_id`."""

    @property
    def pipeline_id(self) -> str:
        """The pipeline that pools of scope `"pipeline"` belong to: by default the directory's name.

        >>> Manifest(Path("/srv/nightly/harn.toml"), {}, ()).pipeline_id
        'nightly'
        """
        return self.pipeline or self.path.resolve().parent.name or NO_DIRECTORY

    def trigger(self, id: str) -> ManifestTrigger | None:
        """Return the trigger *id*, or None."""
        return next((each for each in self.triggers if each.id == id), None)

    def resolver(self) -> Exports:
        """Return new `Exports`; each one imports changed files again."""
        return Exports(self.path.parent, self.exports)

    def bound(self, trigger: ManifestTrigger, exports: Exports) -> Binding:
        """Return the binding of *trigger*; raise `ManifestError` if its import fails."""
        try:
            handler = handler_of(trigger.handler, exports)
            return binding_of(trigger, handler)
        except InvalidOption as error:
            raise ManifestError(f"{self.path.name}: trigger {trigger.id!r}: {error}") from error


def read_manifest(path: str | Path) -> Manifest:
    """Read and check the manifest at *path*, or in that directory; raise all mistakes together.

    Nothing is imported and no secret is read.
    """
    manifest, _, problems = _read_parts(path)
    if problems.found:
        raise ManifestProblems(problems.found)
    return manifest


def examine_manifest(path: str | Path) -> tuple[Manifest, list[Problem]]:
    """Read the manifest, import its handlers and its setup, and return every mistake.

    The manifest contains the triggers without mistakes. Raises `ManifestError` if the file cannot
    be read.
    """
    manifest, document, problems = _read_parts(path)
    exports = manifest.resolver()
    check_handlers(document, exports, problems)
    setup = manifest.setup
    if setup is not None and setup.split("::")[0] in manifest.exports:
        problems.attempt("orchestrator", "setup", lambda: exports.resolve(setup))
    return manifest, problems.found


def _read_parts(path: str | Path) -> tuple[Manifest, dict[str, Any], Problems]:
    path = Path(path)
    if path.is_dir():
        path = path / "harn.toml"
    text = _read(path)
    problems = Problems(path.name, text)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ManifestProblems([Problem(path.name, "", "", f"not TOML: {error}")]) from None
    for key in document:
        if key not in TABLES:
            problems.add("", str(key), f"no such table{did_you_mean(key, TABLES)}")
    exports = _exports(document, problems)
    setup, pipeline = _orchestrator(document, problems)
    manifest = Manifest(
        path=path,
        exports=exports,
        triggers=tuple(read_triggers(document, _declared(document), problems)),
        serve=_serve(document, problems),
        setup=setup,
        a2a_allow=_allow(document, problems),
        card=_card(document, problems),
        pipeline=pipeline,
    )
    _check_together(manifest, _declared(document), problems)
    return manifest, document, problems


def _declared(document: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the exports, including those with a mistake."""
    table = document.get("exports")
    return table.keys() if isinstance(table, dict) else ()


def _read(path: Path) -> str:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ManifestError(f"{path} is not a file")
        check_private(path, "manifest", error=ManifestError)
        if about.st_size > MOST_BYTES:
            raise ManifestError(f"{path} is longer than {MOST_BYTES:,} bytes")
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ManifestError(f"{path} is not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ManifestError(f"{path} cannot be read: {reason}") from None


def _table(
    document: Mapping[str, Any], name: str, known: tuple[str, ...], problems: Problems
) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        problems.add(name, "", f"a table: write [{name}]")
        return {}
    for key in found:
        if known and key not in known:
            problems.add(name, key, f"no such key{did_you_mean(key, known)}")
    return found


def _exports(document: Mapping[str, Any], problems: Problems) -> dict[str, str]:
    table = _table(document, "exports", (), problems)
    found = {}
    for name, source in table.items():
        checked = problems.attempt("exports", name, partial(check_source, source))
        if checked is not None:
            problems.attempt("exports", name, partial(split_reference, f"{name}::x"))
            found[name] = checked
    return found


def _serve(document: Mapping[str, Any], problems: Problems) -> ServeOptions:
    table = _table(document, "serve", ("bind", "keys", "queues"), problems)
    bind = table.get("bind", DEFAULT_BIND)
    problems.attempt("serve", "bind", lambda: check_bind(bind))
    keys = problems.attempt("serve", "keys", lambda: check_secrets("keys", table.get("keys", [])))
    queues = table.get("queues")
    if queues is not None and not _is_names(queues):
        problems.add("serve", "queues", "a list of queues' names")
        queues = None
    return ServeOptions(str(bind), keys or (), None if queues is None else tuple(queues))


def check_bind(bind: Any) -> tuple[str, int]:
    """Read `host:port`."""
    if isinstance(bind, str):
        host, _, text = bind.rpartition(":")
        host, port = host.removeprefix("[").removesuffix("]"), read_whole(text)
        if host and port is not None and port <= 65_535:
            return host, port
    raise InvalidOption("bind", bind, '"host:port", such as "127.0.0.1:8080"')


def _orchestrator(document: Mapping[str, Any], problems: Problems) -> tuple[str | None, str | None]:
    table = _table(document, "orchestrator", ("setup", "pipeline"), problems)
    pipeline = table.get("pipeline")
    if pipeline is not None:
        check = partial(check_name, "pipeline", pipeline, LONGEST_PIPELINE)
        problems.attempt("orchestrator", "pipeline", check)
    return _setup(table.get("setup"), problems), pipeline


def _setup(setup: Any, problems: Problems) -> str | None:
    if setup is None:
        return None
    if not isinstance(setup, str):
        problems.add("orchestrator", "setup", '"export::function"')
        return None
    problems.attempt("orchestrator", "setup", lambda: split_reference(setup))
    return setup


def _allow(document: Mapping[str, Any], problems: Problems) -> tuple[str, ...]:
    table = _table(document, "a2a", ("allow", "card"), problems)
    allow = table.get("allow", [])
    if not _is_names(allow):
        problems.add("a2a", "allow", "a list of host names and networks")
        return ()
    if allow:
        from harn.triggers import check_allowed

        problems.attempt("a2a", "allow", lambda: check_allowed(allow))
    return tuple(allow)


def _card(document: Mapping[str, Any], problems: Problems) -> CardOptions:
    a2a = document.get("a2a")
    table = a2a.get("card", {}) if isinstance(a2a, dict) else {}
    if not isinstance(table, dict):
        problems.add("a2a", "card", "a table: write [a2a.card]")
        return CardOptions()
    names = CardOptions.__struct_fields__
    found = {}
    for key, value in table.items():
        if key not in names:
            problems.add("a2a.card", key, f"no such key{did_you_mean(key, names)}")
        elif problems.attempt("a2a.card", key, partial(check_card, key, value)):
            found[key] = value
    return CardOptions(**found)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _check_together(manifest: Manifest, exports: Collection[str], problems: Problems) -> None:
    setup = manifest.setup
    if setup is not None and setup.split("::")[0] not in exports:
        problems.add("orchestrator", "setup", f"[exports] has no {setup.split('::')[0]!r}")
    paths: dict[str, str] = {}
    for trigger in manifest.triggers:
        path = route_of(trigger)
        if path is not None and paths.setdefault(path, trigger.id) != trigger.id:
            problems.add(f"triggers[{trigger.number}]", "path", f"{path} is also {paths[path]!r}'s")
