"""What `harn lint` reports, and the names under which a module uses harn."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from harn.records import Record

Function = ast.FunctionDef | ast.AsyncFunctionDef

FOLLOWED = ("Owned", "owned", "disown", "drop", "spawn", "defer", "scope")
"""The names of harn that a rule looks for."""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One place to mend: where, why, and the fix. Columns count from 1."""

    path: str
    line: int
    column: int
    code: str
    reason: str
    fix: str


class HarnNames:
    """The names that a module uses for those of harn; *uses_harn* tells whether it imports harn."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        self._modules: set[str] = set()
        self.uses_harn: bool = any(_imports_harn(node) for node in ast.walk(tree))
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
        for name in FOLLOWED:
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
        """Return which name of harn *node* means, if any."""
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


def _imports_harn(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "harn"
    return isinstance(node, ast.Import) and any(
        alias.name.split(".")[0] == "harn" for alias in node.names
    )
