"""Every `HARN_*` environment variable: its name, default and meaning, on one page.

`Settings.load()` reads them once, where a runtime or a command starts, and refuses a bad value
with the variable's name. Nothing else in harn looks at the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from harn.errors import InvalidOption


def _variable(name: str, default: Any, parse: Callable[[str], Any], meaning: str) -> Any:
    return field(default=default, metadata={"name": name, "parse": parse, "meaning": meaning})


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


def _switch(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "on", "yes"}:
        return True
    if word in {"", "0", "false", "off", "no"}:
        return False
    raise ValueError("1 or 0 (true, false, on, off, yes, no)")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for."""

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
        "Store used by the command line when `--storage` is not given.",
    )

    log: str = _variable(
        "HARN_LOG",
        "text",
        _one_of("text", "json"),
        "How the command line writes its log to stderr: `text` or `json`, one line a record.",
    )
    log_level: str = _variable(
        "HARN_LOG_LEVEL",
        "warning",
        _one_of("debug", "info", "warning", "error"),
        "The least severe records that the command line logs.",
    )
    a2a_allow: tuple[str, ...] = _variable(
        "HARN_A2A_ALLOW",
        (),
        lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        "Hosts and networks, with commas between, that `a2a://` may reach though not public.",
    )
    debug: bool = _variable(
        "HARN_DEBUG",
        False,
        _switch,
        "Show the traceback when a command meets an error that harn did not expect.",
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read *environ* (the process's own unless given); a bad value is an `InvalidOption`."""
        environ = os.environ if environ is None else environ
        found = {}
        for item in fields(cls):
            name = item.metadata["name"]
            if name in environ:
                found[item.name] = _parsed(name, environ[name], item.metadata["parse"])
        return cls(**found)


def read_secret(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the secret that the variable *name* holds, or the file that `<name>_FILE` points to.

    None if there is neither, or the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    if name in environ:
        return environ[name]
    path = environ.get(f"{name}_FILE")
    if path is None:
        return None
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidOption(name, text, str(error)) from None


@dataclass(frozen=True, slots=True)
class Variable:
    """One line of the reference page."""

    name: str
    default: str
    meaning: str


def variables() -> list[Variable]:
    """List every variable, in the order of this page."""
    return [
        Variable(item.metadata["name"], str(item.default), item.metadata["meaning"])
        for item in fields(Settings)
    ]
