"""What `harn lint` reports: an owned handle returned without `-> Owned[...]` (HARN-OWN-003).

A variable is owned if it is annotated `Owned[...]` or made by `owned(...)`; a plain copy of one is
owned too. A function that returns it returns a handle that is closed when the block ends, unless
`-> Owned[...]` says that the caller becomes the owner. The analysis reads only the syntax, from top
to bottom. In doubt it reports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from harn.records import Record

CODE = "HARN-OWN-003"
SILENCED = f"noqa: {CODE}"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One owned variable that is returned: where, why, and the fix. Columns count from 1."""

    path: str
    line: int
    column: int
    code: str
    reason: str
    fix: str


def check_source(source: str | bytes, path: str = "<source>") -> list[Finding]:
    """Return the findings in *source*; raise `SyntaxError` if it is not Python.

    >>> for finding in check_source('''
    ... from harn import Owned, channel
    ... def open_log():
    ...     ch: Owned = channel("log")
    ...     return ch
    ... '''):
    ...     print(finding.line, finding.reason)
    5 'ch' is owned by open_log(), which returns it without '-> Owned[...]'
    """
    tree = ast.parse(source, path)
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    lines = text.splitlines()
    names = Names(tree)
    return [
        finding
        for function in ast.walk(tree)
        if isinstance(function, Function)
        for finding in _escapes(function, names, path)
        if not _silenced(lines, finding.line)
    ]


def _silenced(lines: list[str], line: int) -> bool:
    return line <= len(lines) and SILENCED in lines[line - 1]


class Names:
    """The names that a module uses for `Owned`, `owned`, `disown` and `drop`."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        self._modules: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("harn", "harn.tasks"):
                for alias in node.names:
                    self._learn(alias)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in ("harn", "harn.tasks"):
                        self._modules.add(alias.asname or alias.name)
        for statement in tree.body:
            self._learn_alias(statement)

    def _learn(self, alias: ast.alias) -> None:
        for name in ("Owned", "owned", "disown", "drop"):
            if alias.name in (name, "*"):
                self._known[alias.asname or name] = name

    def _learn_alias(self, statement: ast.stmt) -> None:
        # After `Log = Owned[Channel]` at the top, `Log` means `Owned` too.
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Assign) and isinstance(value, ast.Subscript):
            if self.mentions_owned(value):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self._known[target.id] = "Owned"
        elif type(statement).__name__ == "TypeAlias" and self.mentions_owned(value):
            self._known[statement.name.id] = "Owned"  # type: ignore[attr-defined]

    def meaning(self, node: ast.AST | None) -> str | None:
        """Return which of the four names *node* means, if any."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in self._modules:
            return node.attr
        return None

    def mentions_owned(self, annotation: ast.AST | None) -> bool:
        """Tell whether `Owned` occurs anywhere in *annotation*, also inside quotes."""
        if annotation is None:
            return False
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if self.mentions_owned(_parsed(node.value)):
                    return True
            elif self.meaning(node) == "Owned":
                return True
        return False


def _parsed(text: str) -> ast.AST | None:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return None


def _escapes(function: Function, names: Names, path: str) -> Iterator[Finding]:
    if names.mentions_owned(function.returns):
        return
    owned = {
        argument.arg
        for argument in _arguments(function.args)
        if names.mentions_owned(argument.annotation)
    }
    declared = set(owned)
    for node in _statements(function.body):
        if isinstance(node, ast.Return):
            for name in _returned(node.value, owned):
                yield _finding(function, name, path)
        else:
            _follow(node, names, owned, declared)


def _finding(function: Function, name: ast.Name, path: str) -> Finding:
    given = f"'-> {ast.unparse(function.returns)}'" if function.returns is not None else None
    returns = f"returns it as {given}" if given else "returns it without '-> Owned[...]'"
    return Finding(
        path=path,
        line=name.lineno,
        column=name.col_offset + 1,
        code=CODE,
        reason=f"{name.id!r} is owned by {function.name}(), which {returns}",
        fix=f"annotate {function.name}() with '-> Owned[...]' and return disown({name.id}), "
        "or keep the handle inside",
    )


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function in order, also inside blocks, not in inner functions."""
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, block, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body)


def _follow(statement: ast.stmt, names: Names, owned: set[str], declared: set[str]) -> None:
    """Note what *statement* makes owned, and what it disowns or drops."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        if names.mentions_owned(statement.annotation):
            owned.add(statement.target.id)
            declared.add(statement.target.id)
        else:
            _bind(statement.target, statement.value, names, owned, declared)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                _bind(target, statement.value, names, owned, declared)
    for node in _own_expressions(statement):
        if isinstance(node, ast.NamedExpr):
            _bind(node.target, node.value, names, owned, declared)
        elif isinstance(node, ast.Call) and names.meaning(node.func) in ("disown", "drop"):
            for argument in node.args:
                if isinstance(argument, ast.Name):
                    owned.discard(argument.id)


def _bind(
    target: ast.Name, value: ast.expr | None, names: Names, owned: set[str], declared: set[str]
) -> None:
    value = value.value if isinstance(value, ast.Await) else value
    is_owned = isinstance(value, ast.Call) and names.meaning(value.func) == "owned"
    is_copy = isinstance(value, ast.Name) and value.id in owned
    if is_owned or is_copy:
        owned.add(target.id)
    elif target.id not in declared:
        owned.discard(target.id)


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of *statement* itself, not those of the statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr | ast.withitem):
            yield from ast.walk(child)


def _returned(value: ast.expr | None, owned: set[str]) -> Iterator[ast.Name]:
    """Yield the owned names in *value*, also inside lists, dicts and conditional expressions."""
    if isinstance(value, ast.Name):
        if value.id in owned:
            yield value
    elif isinstance(value, ast.NamedExpr):
        yield from _returned(value.value, owned)
    elif isinstance(value, ast.IfExp):
        yield from _returned(value.body, owned)
        yield from _returned(value.orelse, owned)
    elif isinstance(value, ast.BoolOp):
        for each in value.values:
            yield from _returned(each, owned)
    elif isinstance(value, ast.Tuple | ast.List | ast.Set):
        for each in value.elts:
            yield from _returned(each, owned)
    elif isinstance(value, ast.Dict):
        for each in value.values:
            yield from _returned(each, owned)
    elif isinstance(value, ast.Starred):
        yield from _returned(value.value, owned)
