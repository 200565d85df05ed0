"""Write docs/reference/api.md from the docstrings of everything public.

    python -m tools.api          # write it
    python -m tools.api --check  # exit with 1 if it is not up to date

A test runs the second form, so the page cannot fall behind `harn.__all__`.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import harn

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"

ROOMS = {
    "harn.runtime harn.current harn.context": "Runtime and context",
    "harn.tasks": "Tasks",
    "harn.sync": "Channels, shared state, synchronisation",
    "harn.pools": "Pools",
    "harn.durable_calls harn.retry_policy": "Durable functions",
    "harn.unsettled": "What is still under way",
    "harn.eventlog": "The event log",
    "harn.storage": "Records of the event log",
    "harn.workers": "Worker queues",
    "harn.state": "Durable state and steps",
    "harn.triggers": "Triggers",
    "harn.supervisors": "Supervisors",
    "harn.ratelimit": "Rate limits",
    "harn.llm": "Models",
    "harn.duration": "Durations",
    "harn.errors": "Errors",
}
HEAD = """# API

Every public name, importable from `harn` itself. This page is made from the docstrings by
`python -m tools.api`; the examples in it run in the tests. Durations are seconds, or text with a
unit (`"250ms"`, `"5m"`), except where a name ends in `_ms`.
"""


def page() -> str:
    """Return the whole page."""
    names_of = {room: names.split() for room, names in vars(harn)["_ROOMS"].items()}
    parts = [HEAD]
    for rooms, title in ROOMS.items():
        names = [name for room in rooms.split() for name in names_of.pop(room)]
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in sorted(names, key=str.lower)]
    if names_of:
        raise SystemExit(f"name a section for {', '.join(names_of)}")
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str) -> str:
    thing = getattr(harn, name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return f"### `{name}`\n\n`{_plain(thing)}`\n"
    signature = _signature(name, thing)
    text = f"### `{name}`\n\n```text\n{signature}\n```\n\n{_prose(thing)}\n"
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        text += _members(thing)
    return text


def _plain(thing: Any) -> str:
    return str(thing).replace("typing.", "")


def _signature(name: str, thing: Any) -> str:
    start = "async " if inspect.iscoroutinefunction(thing) else ""
    kind = "class " if inspect.isclass(thing) else f"{start}def "
    try:
        signature = inspect.signature(thing)
    except (ValueError, TypeError):
        return f"{kind}{name}"
    bare = signature.replace(
        parameters=[
            each.replace(annotation=inspect.Parameter.empty)
            for each in signature.parameters.values()
            if not each.name.startswith("_")
        ]
    )
    returns = "" if inspect.isclass(thing) else _returns(signature)
    shown = str(bare.replace(return_annotation=inspect.Signature.empty))
    shown = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", shown)
    return _folded(f"{kind}{name}{shown}{returns}")


def _returns(signature: inspect.Signature) -> str:
    found = signature.return_annotation
    if found is inspect.Signature.empty:
        return ""
    return f" -> {found if isinstance(found, str) else getattr(found, '__name__', found)}"


def _folded(text: str) -> str:
    if len(text) <= 96:
        return text
    inside = text[text.index("(") + 1 : text.rindex(")")]
    opening, closing = text[: text.index("(") + 1], text[text.rindex(")") :]
    lines, depth, line = [], 0, ""
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            lines.append(line.strip())
            line = ""
        else:
            line += letter
    return "\n".join([opening, *(f"    {each}," for each in [*lines, line.strip()]), closing])


def _prose(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    first, *rest = re.split(r"\n(?=>>> )", text, maxsplit=1)
    shown = first.strip().replace("\n\n\n", "\n\n")
    return f"{shown}\n\n```pycon\n{rest[0].strip()}\n```" if rest else shown


def _members(thing: type) -> str:
    rows = []
    for name, member in sorted({**_inherited(thing), **vars(thing)}.items()):
        if name.startswith("_"):
            continue
        target = member.fget if isinstance(member, property) else member
        target = getattr(target, "__func__", target)
        if not inspect.isroutine(target) or not (text := inspect.getdoc(target)):
            continue
        called = f".{name}" if isinstance(member, property) else f".{name}()"
        wait = "await " if inspect.iscoroutinefunction(target) else ""
        sentence = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `{wait}{called}` | {sentence} |")
    return "\n".join(["", "| member | |", "|---|---|", *rows, ""]) if rows else ""


def _inherited(thing: type) -> dict[str, Any]:
    """Return what *thing* has from `Record`: callers use it as if it stood in the class."""
    bases = [base for base in thing.__mro__[1:] if base.__module__ == "harn.records"]
    return {name: each for base in reversed(bases) for name, each in vars(base).items()}


def main() -> int:
    """Write the page, or with `--check` compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        same = PAGE.exists() and PAGE.read_text() == text
        print("up to date" if same else "docs/reference/api.md is old: python -m tools.api")
        return 0 if same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
