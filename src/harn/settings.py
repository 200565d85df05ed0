"""Every `HARN_*` environment variable: its name, default and meaning, on one page.

`Settings.load()` reads them once, where a runtime or a command starts; `SchedulerSettings.load()`
reads those of worker queues whenever a queue is made. Both refuse a bad value with the variable's
name. Nothing else in harn looks at the environment. The terminal's own
NO_COLOR and TERM are read here too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from harn.duration import to_ms
from harn.errors import InvalidOption
from harn.option_checks import LARGEST, read_whole

logger: logging.Logger = logging.getLogger("harn.settings")


class Variable(NamedTuple):
    """A variable: its name, its value if it is not set, how its text is read, and its meaning."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    meaning: str


def _variable(name: str, default: Any, parse: Callable[[str], Any], meaning: str) -> Any:
    return Variable(name, default, parse, meaning)


class _Settings:
    """Attributes that are read from variables of the environment, and never change.

    Not a dataclass: every command would wait a millisecond until Python has made each. A default
    is an attribute of the class; an instance holds what is set, and does not show it.
    """

    variables: ClassVar[dict[str, Variable]]

    def __init_subclass__(cls) -> None:
        cls.variables = {name: v for name, v in vars(cls).items() if isinstance(v, Variable)}
        for name, variable in cls.variables.items():
            setattr(cls, name, variable.default)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read *environ* (the process's own unless given); a bad value is an `InvalidOption`."""
        environ = os.environ if environ is None else environ
        loaded = cls()
        for name, variable in cls.variables.items():
            if (text := environ.get(variable.name)) is not None:
                loaded.__dict__[name] = _parsed(variable.name, text, variable.parse)
        return loaded

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} is read from the environment and does not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a non-empty value")
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return word

    return parse


def _separator(value: str) -> str | None:
    if value.strip() not in ("", "/"):
        raise ValueError("/, or nothing")
    return value.strip() or None


def _switch(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "on", "yes"}:
        return True
    if word in {"", "0", "false", "off", "no"}:
        return False
    raise ValueError("1 or 0 (true, false, on, off, yes, no)")


def _word(known: Mapping[str, str], accepted: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in known:
            raise ValueError(accepted)
        return known[word]

    return parse


def _at_least(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = read_whole(value.strip())
        if number is None or not least <= number < LARGEST:
            raise ValueError(f"a whole number, at least {least}")
        return number

    return parse


def read_weights(value: str) -> tuple[tuple[str, int], ...]:
    """Read weights by key, `gold:4,silver:2`; a `ValueError` says what is accepted."""
    accepted = "key:weight,... with each key once and weights of at least 1"
    found: dict[str, int] = {}
    for part in value.split(",") if value.strip() else []:
        key, colon, weight = part.strip().rpartition(":")
        key = key.strip()
        if not colon or not key or key in found:
            raise ValueError(accepted)
        try:
            found[key] = _at_least(1)(weight)
        except ValueError:
            raise ValueError(accepted) from None
    return tuple(found.items())


def _milliseconds(value: str) -> int:
    number = read_whole(value.strip())
    return to_ms(value.strip() if number is None else number, "duration_ms")


def _kept_ms(value: str) -> int:
    return 0 if value.strip() == "0" else _duration_ms(value)


def _duration_ms(value: str) -> int:
    return to_ms(value.strip(), "duration")


class Settings(_Settings):
    """The settings that a runtime or a command reads from the environment."""

    state_dir: Path = _variable(
        "HARN_STATE_DIR",
        Path(".harn"),
        lambda text: Path(_text(text)),
        "Directory for journals, limiter files and the command line's default store.",
    )
    storage: str | None = _variable(
        "HARN_STORAGE",
        None,
        _text,
        "Store used by the command line when `--storage` is not given; wins over `--state-dir`.",
    )

    allow_insecure_state: bool = _variable(
        "HARN_ALLOW_INSECURE_STATE",
        False,
        _switch,
        "Use a state directory, store, manifest or handler module that others can write to.",
    )
    log: str = _variable(
        "HARN_LOG",
        "text",
        _one_of("text", "json"),
        "How the command line writes its log to stderr: `text` or `json`, one line a record.",
    )
    log_level: str | None = _variable(
        "HARN_LOG_LEVEL",
        None,
        _one_of("debug", "info", "warning", "error"),
        "The least severe records that the command line logs. Without it: `info` for commands that "
        "serve (`serve`, `worker`, `queue drain --wait`), `warning` for others.",
    )
    a2a_allow: tuple[str, ...] = _variable(
        "HARN_A2A_ALLOW",
        (),
        lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        "Hosts and networks, with commas between, that `a2a://` may reach though not public; "
        "`a2a+http://` before one also allows clear text.",
    )
    credential_headers: tuple[str, ...] = _variable(
        "HARN_CREDENTIAL_HEADERS",
        (),
        lambda text: tuple(part.strip().casefold() for part in text.split(",") if part.strip()),
        "Words, with commas between: headers whose names hold one are not kept with an event, "
        "like those with `token`, `key` or `cookie` in them.",
    )
    masked_names: tuple[str, ...] = _variable(
        "HARN_MASKED_NAMES",
        (),
        lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        "More names, with commas between: the portal masks the fields of payloads, headers and "
        "records that have one in their names, like those with `password` or `token`.",
    )
    debug: bool = _variable(
        "HARN_DEBUG",
        False,
        _switch,
        "Show the traceback when a command meets an error that harn did not expect.",
    )

    providers: Path | None = _variable(
        "HARN_PROVIDERS",
        None,
        lambda text: Path(_text(text)),
        "File that describes model providers, instead of `providers.toml` and `harn.toml`.",
    )
    llm_rate_limit_state_path: Path | None = _variable(
        "HARN_LLM_RATE_LIMIT_STATE_PATH",
        None,
        lambda text: Path(_text(text)),
        "SQLite file that keeps what model calls have used, for a fleet that shares a quota.",
    )
    llm_rate_limit_durable: bool = _variable(
        "HARN_LLM_RATE_LIMIT_DURABLE",
        True,
        lambda text: text.strip().lower() not in {"0", "false", "off", "no", "none", "disabled"},
        "Share limits of model calls between processes; `0` keeps them inside each one.",
    )
    llm_rate_limit_max_wait_ms: int | None = _variable(
        "HARN_LLM_RATE_LIMIT_MAX_WAIT_MS",
        None,
        _milliseconds,
        "How long a model call may wait for its quota before it fails; without it, forever.",
    )
    llm_rate_limit_travel_ms: int | None = _variable(
        "HARN_LLM_RATE_LIMIT_TRAVEL_MS",
        None,
        _milliseconds,
        "How long a model call may travel: its reservation counts that much longer than a minute.",
    )

    lease_renew_ms: int = _variable(
        "HARN_LEASE_RENEW_MS",
        5_000,
        _at_least(1),
        "How often a consumer renews its lease, in milliseconds.",
    )
    lease_ms: int = _variable(
        "HARN_LEASE_MS",
        15_000,
        _at_least(1),
        "How long a consumer counts as alive after its last renewal, in milliseconds.",
    )
    dedupe_window_ms: int = _variable(
        "HARN_DEDUPE_WINDOW",
        86_400_000,
        _duration_ms,
        "How long a settled job's dedupe key still answers with that job.",
    )
    keep_settled_ms: int = _variable(
        "HARN_KEEP_SETTLED",
        14 * 86_400_000,
        _kept_ms,
        "How long acked, cancelled and purged jobs are kept after they settled; `0` is forever.",
    )
    keep_dead_ms: int = _variable(
        "HARN_KEEP_DEAD",
        90 * 86_400_000,
        _kept_ms,
        "How long dead jobs are kept after they died; `0` is forever.",
    )


class SchedulerSettings(_Settings):
    """How worker queues share their jobs: read when a queue is made, not when the runtime opens."""

    strategy: Literal["fifo", "drr"] = _variable(
        "HARN_SCHEDULER_STRATEGY",
        "fifo",
        _word(
            {"fifo": "fifo", "drr": "drr", "deficit-round-robin": "drr", "fair-share": "drr"},
            "fifo or drr",
        ),
        "How a worker queue chooses the next job: `fifo`, or `drr` for a fair share.",
    )
    fairness_key: Literal["tenant", "binding", "trigger-id", "tenant-and-binding"] = _variable(
        "HARN_SCHEDULER_FAIRNESS_KEY",
        "tenant",
        _word(
            {
                "tenant": "tenant",
                "binding": "binding",
                "trigger-id": "trigger-id",
                "trigger_id": "trigger-id",
                "tenant-and-binding": "tenant-and-binding",
                "tenant_and_binding": "tenant-and-binding",
            },
            "tenant, binding, trigger-id or tenant-and-binding",
        ),
        "What a fair share is given to: `tenant`, `binding`, `trigger-id`, `tenant-and-binding`.",
    )
    quantum: int = _variable(
        "HARN_SCHEDULER_QUANTUM", 1, _at_least(1), "Jobs a key may take in a round, per weight."
    )
    starvation_age_ms: int = _variable(
        "HARN_SCHEDULER_STARVATION_AGE_MS",
        300_000,
        _at_least(0),
        "Promote a job that has waited this long, in milliseconds; 0 never does.",
    )
    max_concurrent_per_key: int = _variable(
        "HARN_SCHEDULER_MAX_CONCURRENT_PER_KEY",
        0,
        _at_least(0),
        "Claims of one key in flight at once, at most; 0 is no cap.",
    )
    default_weight: int = _variable(
        "HARN_SCHEDULER_DEFAULT_WEIGHT",
        1,
        _at_least(1),
        "Weight of keys that `HARN_SCHEDULER_WEIGHTS` does not list.",
    )
    weights: tuple[tuple[str, int], ...] = _variable(
        "HARN_SCHEDULER_WEIGHTS",
        (),
        read_weights,
        "Weights of keys, as in `tenant-a:3,tenant-b:1`.",
    )
    charge: Literal["jobs", "cost"] = _variable(
        "HARN_SCHEDULER_CHARGE",
        "jobs",
        _one_of("jobs", "cost"),
        "What a fair share is counted in: `jobs`, or the `cost` of each.",
    )
    hierarchy: Literal["/"] | None = _variable(
        "HARN_SCHEDULER_HIERARCHY",
        None,
        _separator,
        "`/` makes tenants paths, as in `acme/bob`, which share level by level.",
    )


def allow_insecure_state() -> None:
    """Set `HARN_ALLOW_INSECURE_STATE` for this process and the processes that it starts."""
    os.environ["HARN_ALLOW_INSECURE_STATE"] = "1"


def wants_colours() -> bool:
    """Tell whether `NO_COLOR` is unset."""
    return not os.environ.get("NO_COLOR")


def has_dumb_terminal() -> bool:
    """Tell whether `TERM` names a terminal that only prints, or is unset."""
    return os.environ.get("TERM", "dumb") == "dumb"


def environment_with(added: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with the variables *added*."""
    return {**os.environ, **added}


def read_secret(name: str) -> str | None:
    """Return the secret that the variable *name* holds, or the file that `<name>_FILE` points to.

    None if there is neither, or the file cannot be read.
    """
    if name in os.environ:
        return os.environ[name]
    path = os.environ.get(f"{name}_FILE")
    if path is None:
        return None
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def host_name() -> str:
    """Return the machine's name from `HOSTNAME`, or `"local"`."""
    return os.environ.get("HOSTNAME", "").strip() or "local"


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except InvalidOption as error:  # it names the option of the reader, not the variable
        raise InvalidOption(name, text, error.accepted) from None
    except ValueError as error:
        raise InvalidOption(name, text, str(error)) from None


RATE_LIMIT = "HARN_RATE_LIMIT_"


def rate_limit_variables(environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return every `HARN_RATE_LIMIT_<PROVIDER>...` that holds a whole number, by what follows.

    The limiter finds the provider, model and field in each name. A value that is not a whole
    number is left out with a warning.

    >>> rate_limit_variables({"HARN_RATE_LIMIT_ACME_TPM": "90000", "HOME": "/"})
    {'ACME_TPM': 90000}
    """
    environ = os.environ if environ is None else environ
    found = {}
    for name, text in environ.items():
        if name.startswith(RATE_LIMIT) and len(name) > len(RATE_LIMIT):
            try:
                found[name.removeprefix(RATE_LIMIT)] = int(text[:20])
            except ValueError:
                logger.warning("%s=%r is not a whole number and was ignored", name, text[:40])
    return found


def variables() -> list[Variable]:
    """List every variable, in the order of this page."""
    return [*Settings.variables.values(), *SchedulerSettings.variables.values()]
