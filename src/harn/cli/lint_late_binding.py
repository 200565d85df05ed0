"""HARN-SUB-001: a closure that is submitted in a loop sees a variable that the loop changes.

    for customer in customers:
        await pool.submit(lambda: report(customer))

A closure looks up its variables when it runs. A pool runs it later, when the loop has gone on, so
that every task sees the last customer. This is so for `submit`, `submit_nowait`, `submit_many`,
`spawn` and `defer`, for lambdas and for functions that are defined in the loop, and for each
variable that the loop binds.

The analysis reads only the syntax. In doubt it reports nothing: if the closure's task is awaited in
the same turn of the loop, if the pool or scope ends with the turn, if the turn is the last one
(`break`, `return`), or if the closure binds the name itself: `lambda customer=customer: ...`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harn.cli.lint_findings import Finding, Function, HarnNames

CODE = "HARN-SUB-001"

METHODS = ("submit", "submit_nowait", "submit_many", "spawn", "defer")
FUNCTIONS = ("spawn", "defer")
WAITS = {"submit": 2, "submit_many": 2}
"""How many awaits around a call wait for its task; one, if it is not named here."""

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = ast.For | ast.AsyncFor | ast.While | Comprehension
Closure = ast.Lambda | Function


def late_bindings(tree: ast.Module, names: HarnNames, path: str) -> Iterator[Finding]:
    """Yield each closure that is submitted in a loop and uses a variable that the loop binds."""
    if not names.uses_harn:
        return
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (verb := _verb(call, names)) is not None:
            for argument in _submitted(call, verb):
                loops = list(_loops_around(argument, call, names, parents))
                closure = _closure(argument, loops)
                if closure is None or _ends_with_the_turn(call, verb, loops, parents):
                    continue
                if seen := sorted(_free_names(closure) & set(_bound(loops))):
                    yield _finding(call, verb, closure, argument, seen[0], path)


def _verb(call: ast.Call, names: HarnNames) -> str | None:
    """Return how *call* submits something that runs later, if it does."""
    meant = names.meaning(call.func)
    if meant in FUNCTIONS:
        return meant
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
    return call.func.attr if is_method else None  # type: ignore[attr-defined]


def _submitted(call: ast.Call, verb: str) -> Iterator[ast.expr]:
    """Yield the expressions of the functions that *call* submits."""
    if not call.args:
        return
    first = call.args[0]
    if verb != "submit_many":
        yield first
        return
    items = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
    if isinstance(first, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        items = [first.elt]
    for item in items:
        yield item.elts[0] if isinstance(item, ast.Tuple) and item.elts else item


def _loops_around(
    node: ast.AST, call: ast.Call, names: HarnNames, parents: dict[ast.AST, ast.AST]
) -> Iterator[ast.AST]:
    """Yield the loops around *node* in its function, the innermost first.

    A block that waits for the task at its end, such as `async with pool:`, ends the search.
    """
    while (node := parents.get(node)) is not None:  # type: ignore[assignment]
        if isinstance(node, Closure | ast.ClassDef):
            return
        if isinstance(node, ast.AsyncWith) and _waits_at_its_end(node, call, names):
            return
        if isinstance(node, Loop):
            yield node


def _waits_at_its_end(block: ast.AsyncWith, call: ast.Call, names: HarnNames) -> bool:
    base = getattr(call.func, "value", None)
    for item in block.items:
        opened = item.context_expr
        if isinstance(opened, ast.Call) and names.meaning(opened.func) == "scope":
            return True
        for name in (item.optional_vars, opened):
            if isinstance(name, ast.Name) and isinstance(base, ast.Name) and name.id == base.id:
                return True
    return False


def _closure(argument: ast.expr, loops: list[ast.AST]) -> Closure | None:
    """Return the lambda, or the function that the loop defines, that *argument* is."""
    if isinstance(argument, ast.Lambda):
        return argument
    if isinstance(argument, ast.Name):
        for loop in loops:
            for node in _in_scope(loop):
                if isinstance(node, Function) and node.name == argument.id:
                    return node
    return None


def _ends_with_the_turn(
    call: ast.Call, verb: str, loops: list[ast.AST], parents: dict[ast.AST, ast.AST]
) -> bool:
    """Tell whether the task may have ended, or the loop, before the next turn of the loop."""
    node, awaits, kept = call, 0, None
    while isinstance(parent := parents[node], ast.expr) and not isinstance(parent, Loop):
        awaits += isinstance(parent, ast.Await)
        kept = parent.target.id if isinstance(parent, ast.NamedExpr) else kept
        node = parent  # type: ignore[assignment]
    if awaits >= WAITS.get(verb, 1):
        return True
    if not isinstance(parent, ast.stmt):
        return False
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        kept = parent.targets[0].id
    if kept is not None and loops and kept in _awaited(loops[0]):
        return True
    return isinstance(parent, ast.Return) or _leaves_the_loop(parent, parents[parent])


def _leaves_the_loop(statement: ast.stmt, parent: ast.AST) -> bool:
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if isinstance(statements, list) and statement in statements:
            after = statements[statements.index(statement) :]
            return any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in after)
    return False


def _awaited(loop: ast.AST) -> set[str]:
    waits = [node for node in _in_scope(loop) if isinstance(node, ast.Await)]
    return {name.id for wait in waits for name in ast.walk(wait) if isinstance(name, ast.Name)}


def _bound(loops: list[ast.AST]) -> Iterator[str]:
    """Yield the names that *loops* bind on each turn."""
    for loop in loops:
        for node in _in_scope(loop):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, Function):
                yield node.name


def _in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield everything below *node*, without what is inside functions, classes and lambdas."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Closure | ast.ClassDef):
            yield from _in_scope(child)


def _free_names(closure: Closure) -> set[str]:
    """Return the names that *closure* looks up when it runs and does not bind itself."""
    body = closure.body if isinstance(closure.body, list) else [closure.body]
    nodes = [node for each in (closure.args, *body) for node in ast.walk(each)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.name for node in nodes if isinstance(node, Function)}
    inside = [node for each in body for node in ast.walk(each) if isinstance(node, ast.Name)]
    own |= {node.id for node in inside if isinstance(node.ctx, ast.Store)}
    return {node.id for node in inside} - own


def _finding(
    call: ast.Call, verb: str, closure: Closure, argument: ast.expr, name: str, path: str
) -> Finding:
    return Finding(
        path=path,
        line=argument.lineno,
        column=argument.col_offset + 1,
        code=CODE,
        reason=f"this closure runs later and then sees the last {name!r} of the loop",
        fix=_fix(call, verb, closure, name),
    )


def _fix(call: ast.Call, verb: str, closure: Closure, name: str) -> str:
    if not isinstance(closure, ast.Lambda):
        return f"make {name} a parameter of {closure.name}: {verb}({closure.name}, {name})"
    body = closure.body
    is_plain = isinstance(body, ast.Call) and body.args and not body.keywords
    if is_plain and verb != "submit_many" and not closure.args.args:
        arguments = ", ".join(map(ast.unparse, (body.func, *body.args)))  # type: ignore[attr-defined]
        if len(arguments) < 80 and "\n" not in arguments:
            return f"give the arguments too: {verb}({arguments})"
    return f"bind the name when the closure is made: lambda {name}={name}: ..."
