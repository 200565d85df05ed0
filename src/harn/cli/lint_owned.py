"""HARN-OWN-003: an owned handle is returned without `-> Owned[...]`.

A variable is owned if it is annotated `Owned[...]` or made by `owned(...)`; a plain copy of one is
owned too. A function that returns it returns a handle that is closed when the block ends, unless
`-> Owned[...]` says that the caller becomes the owner. The analysis reads only the syntax, from top
to bottom. In doubt it reports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harn.cli.lint_findings import Finding, Function, HarnNames

CODE = "HARN-OWN-003"


def owned_escapes(tree: ast.Module, names: HarnNames, path: str) -> Iterator[Finding]:
    """Yield each owned variable that a function of *tree* returns without saying so."""
    for function in ast.walk(tree):
        if isinstance(function, Function):
            yield from _escapes(function, names, path)


def _escapes(function: Function, names: HarnNames, path: str) -> Iterator[Finding]:
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


def _follow(statement: ast.stmt, names: HarnNames, owned: set[str], declared: set[str]) -> None:
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
    target: ast.Name, value: ast.expr | None, names: HarnNames, owned: set[str], declared: set[str]
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
