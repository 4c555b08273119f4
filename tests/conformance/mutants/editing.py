"""Edits of the reference's syntax trees, which do not care what its local variables are called."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from specdec_hal.ops import OPS

_Names = dict[str, str]  # a variable of the pattern: the reference's


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must stand at exactly one place of a module of the reference, by `new`.

    Both are Python: an expression, or statements that follow one another. Names of the module, of Python and of an op's
    operands stand for themselves, every other name in `old` for any variable. A body `...` stands for any body.
    `within`: look in this function or class only. `given`: another place of the same function, by which variables are
    known that `new` uses and `old` lacks.
    """

    module: str
    old: str
    new: str
    within: str = ""
    given: str = ""

    def apply(self, tree: ast.Module) -> None:
        """Change the module's tree. Raises LookupError where the edit does not fit."""
        names = self._find(tree, self.given, {}).names if self.given else {}
        place = self._find(tree, self.old, names)
        place.put(_renamed(_parsed(self.new), place))

    def _find(self, tree: ast.Module, pattern: str, names: _Names) -> _Place:
        found = list(_places(tree, self.within, _parsed(pattern), names))
        if len(found) != 1:
            where = f"backends/reference/{self.module}.py {self.within}".strip()
            raise LookupError(f"{where}: {pattern!r} occurs {len(found)} times, expected 1; mend the mutant")
        return found[0]


@dataclass
class _Place:
    """Where a pattern fits: `count` nodes of parent.field from `at` on, or the only one of a field that is no list."""

    parent: ast.AST
    field: str
    at: int
    count: int
    names: _Names
    known: frozenset[str]  # names that stand for themselves
    body: list[ast.stmt]  # what `...` stood for

    def put(self, nodes: list[ast.AST]) -> None:
        if self.count:
            getattr(self.parent, self.field)[self.at : self.at + self.count] = nodes
        else:
            setattr(self.parent, self.field, nodes[0])


def _parsed(text: str) -> list[ast.AST]:
    """The statements, or the expression."""
    tree = ast.parse(text)
    if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
        return [tree.body[0].value]
    return list(tree.body)


def _places(tree: ast.Module, within: str, pattern: list[ast.AST], names: _Names) -> Iterator[_Place]:
    for top, known in names_that_stay(tree):
        for root in ast.walk(top) if within else [top]:
            if not within or getattr(root, "name", "") == within:
                yield from _inside(root, pattern, names, known)


def names_that_stay(tree: ast.Module) -> Iterator[tuple[ast.stmt, frozenset[str]]]:
    """What is no variable in each statement of the module: names of Python and of the module, operands of the op."""
    names = set(dir(builtins))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        else:
            names.update(target.id for target in ast.walk(node) if isinstance(target, ast.Name))
    for top in tree.body:
        of_op = isinstance(top, ast.FunctionDef) and top.name in OPS
        operands = {argument.arg for argument in (*top.args.args, *top.args.kwonlyargs)} if of_op else set()
        yield top, frozenset(names | operands)


def _inside(root: ast.AST, pattern: list[ast.AST], names: _Names, known: frozenset[str]) -> Iterator[_Place]:
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for at in range(len(nodes) - len(pattern) + 1):
                if type(nodes[at]) is not type(pattern[0]):
                    continue
                match = _Match(known, dict(names), [])
                if match.same(pattern, nodes[at : at + len(pattern)]):
                    count = len(pattern) if isinstance(value, list) else 0
                    yield _Place(parent, field, at, count, match.names, known, match.body)


@dataclass
class _Match:
    """One attempt: which variable each name of the pattern stands for."""

    known: frozenset[str]
    names: _Names
    body: list[ast.stmt]

    def same(self, pattern: object, node: object) -> bool:
        if isinstance(pattern, list) and isinstance(node, list):
            if _is_any_body(pattern) and node:
                self.body = node
                return True
            return len(pattern) == len(node) and all(map(self.same, pattern, node))
        if isinstance(pattern, ast.Name) and isinstance(node, ast.Name):
            return self._name(pattern.id, node.id)
        if isinstance(pattern, ast.arg) and isinstance(node, ast.arg):
            return self._name(pattern.arg, node.arg)
        if isinstance(pattern, ast.AST):
            return type(pattern) is type(node) and all(
                self.same(value, getattr(node, field)) for field, value in ast.iter_fields(pattern)
            )
        return type(pattern) is type(node) and pattern == node

    def _name(self, pattern: str, name: str) -> bool:
        if pattern in self.known or name in self.known:
            return pattern == name
        if pattern not in self.names and name in self.names.values():
            return False
        return self.names.setdefault(pattern, name) == name


def _is_any_body(pattern: object) -> bool:
    return (
        isinstance(pattern, list)
        and len(pattern) == 1
        and isinstance(pattern[0], ast.Expr)
        and isinstance(pattern[0].value, ast.Constant)
        and pattern[0].value.value is ...
    )


def _renamed(nodes: list[ast.AST], place: _Place) -> list[ast.AST]:
    """The replacement in the reference's names, with new ones for the variables that it makes."""
    within = [node for root in nodes for node in ast.walk(root)]
    made = {node.id for node in within if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in within if isinstance(node, ast.arg)}
    used = {node.id for node in within if isinstance(node, ast.Name)}
    unknown = used - made - place.known - set(place.names)
    if unknown:
        raise LookupError(f"{', '.join(sorted(unknown))}: in `new`, but neither in `old` nor in `given`")
    names = {name: f"mutant_{name}" for name in made - place.known} | place.names
    for node in within:
        for field, value in ast.iter_fields(node):
            if _is_any_body(value):
                setattr(node, field, copy.deepcopy(place.body))
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)
    return nodes
