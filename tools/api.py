"""Write docs/reference/api.md from the docstrings of everything public.

    python -m tools.api          # write it
    python -m tools.api --check  # exit with 1 if it is not up to date

A test runs the second form, so the page cannot fall behind `harn.__all__`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_overloads, is_typeddict

import harn

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"

ROOMS = {
    "harn.runtime harn.run_main harn.current harn.running_context": "Runtime and context",
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
`python -m tools.api`. Each example runs by itself after `import asyncio` and `from harn import *`,
and the tests run them so. Durations are seconds, or text with a unit (`"250ms"`, `"5m"`), except
where a name ends in `_ms`.
"""


def page() -> str:
    """Return the whole page."""
    names_of = {f"harn.{room}": names.split() for room, names in vars(harn)["_ROOMS"].items()}
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
    if words := _spelt_out(thing, signature):
        text += f"\n{words}\n"
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        text += _members(thing)
    return text


def _plain(thing: Any) -> str:
    """Return a type or an annotation as a reader would write it, without the names of modules."""
    text = thing if isinstance(thing, str) else inspect.formatannotation(thing)
    return re.sub(
        r"\b(?:typing|typing_extensions|datetime|collections\.abc|harn(?:\.\w+)*)\.", "", text
    )


def _signature(name: str, thing: Any) -> str:
    start = "async " if inspect.iscoroutinefunction(thing) else ""
    kind = "class " if inspect.isclass(thing) else f"{start}def "
    try:
        variants = [inspect.signature(each) for each in _variants(thing)]
    except (ValueError, TypeError):
        return f"{kind}{name}"
    parameters = [
        each.replace(annotation=_Words(_merged(each.name, variants)))
        for each in variants[-1].parameters.values()
        if not each.name.startswith("_") and each.name != "self"
    ]
    shown = str(variants[-1].replace(parameters=parameters, return_annotation=_EMPTY))
    shown = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", shown)
    returns = "" if inspect.isclass(thing) else _returns(thing, variants)
    return _folded(f"{kind}{name}{shown}{returns}")


_EMPTY = inspect.Signature.empty


class _Words(str):
    """Text that `inspect` prints without quotes, as it does with a type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _variants(thing: Any) -> list[Any]:
    """Return the overloads of a function, then the function itself."""
    return [thing] if inspect.isclass(thing) else [*get_overloads(inspect.unwrap(thing)), thing]


def _merged(name: str, variants: list[inspect.Signature]) -> str:
    """Return the types that the overloads accept for one parameter."""
    declared = variants[:-1] or variants
    found = [each.parameters[name].annotation for each in declared if name in each.parameters]
    return _union(found or [variants[-1].parameters[name].annotation])


def _returns(thing: Any, variants: list[inspect.Signature]) -> str:
    found = _union([each.return_annotation for each in variants[:-1] or variants])
    if inspect.isgeneratorfunction(inspect.unwrap(thing)) and hasattr(thing, "__wrapped__"):
        found = found.replace("Iterator[", "AbstractContextManager[")
    return f" -> {found}" if found else ""


def _union(annotations: list[Any]) -> str:
    texts = [_plain(each) for each in annotations if each is not _EMPTY]
    return " | ".join(dict.fromkeys(part for text in texts for part in _split(text, " | ")))


def _split(text: str, separator: str) -> list[str]:
    """Split *text* where *separator* is not inside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at])
            start = at + len(separator)
    return [*parts, text[start:]]


def _spelt_out(thing: Any, signature: str) -> str:
    """Say what the names in *signature* stand for that are not public themselves."""
    found: dict[str, str] = {}
    _spell(signature, vars(sys.modules[inspect.unwrap(thing).__module__]), found)
    return "\n\n".join(found[name] for name in sorted(found))


def _spell(text: str, known: Mapping[str, Any], found: dict[str, str]) -> None:
    for name in set(re.findall(r"\b[A-Z]\w+", text)) - set(found):
        value = known.get(name)
        if value is getattr(harn, name, _EMPTY):
            continue
        if is_typeddict(value):
            fields = {key: kind.__forward_arg__ for key, kind in value.__annotations__.items()}
            shown = ", ".join(f"`{key}: {_plain(kind)}`" for key, kind in fields.items())
            found[name] = f"`{name}` has {shown}.\n\n{_prose(value)}"
            _spell(shown, vars(sys.modules[value.__module__]), found)
        elif get_origin(value) is not None or isinstance(value, UnionType):
            is_union = get_origin(value) in (Union, UnionType)
            parts = map(_plain, get_args(value)) if is_union else [_plain(value)]
            shown = " | ".join(parts).replace("NoneType", "None")
            found[name] = f"`{name}` is `{shown}`."


def _folded(text: str) -> str:
    if len(text) <= 96 or "(" not in text:
        return text
    start = text.index("(")
    end = start + _length(text[start:])
    inside = _split(text[start + 1 : end - 1], ", ")
    return "\n".join([text[: start + 1], *(f"    {each}," for each in inside), text[end - 1 :]])


def _length(text: str) -> int:
    """Return how long the brackets are with which *text* begins, with what is inside."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return at + 1
    raise ValueError(text)


def _prose(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    first, *rest = re.split(r"\n(?=>>> )", text, maxsplit=1)
    shown = first.strip().replace("\n\n\n", "\n\n")
    return f"{shown}\n\n```pycon\n{rest[0].strip()}\n```" if rest else shown


def _members(thing: type) -> str:
    parts = []
    seams = getattr(sys.modules[thing.__module__], "SEAMS", ())  # names that `dir` leaves out
    for name, member in sorted({**_inherited(thing), **vars(thing)}.items()):
        if name.startswith("_") or name in seams:
            continue
        target = member.fget if isinstance(member, property) else member
        target = getattr(target, "__func__", target)
        if not inspect.isroutine(target) or not (text := inspect.getdoc(target)):
            continue
        shown = _signature(name, target)
        if isinstance(member, property):
            shown = f"{name}: {_plain(inspect.signature(target).return_annotation)}"
        first = text.split("\n\n")[0]
        parts.append(f"\n#### `{thing.__name__}.{name}`\n\n```text\n{shown}\n```\n\n{first}\n")
        if words := _spelt_out(target, shown):
            parts.append(f"\n{words}\n")
    return "".join(parts)


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
