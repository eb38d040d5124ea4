"""Which private parts of libraries a module uses, by its source."""

import ast
from collections.abc import Iterable
from inspect import getsource
from types import ModuleType


def used(modules: Iterable[ModuleType]) -> set[str]:
    """Return the private attributes that the modules get or set, and do not define themselves."""
    names: set[str] = set()
    own: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse(getsource(module))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
                on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                own |= {node.attr} if on_self and isinstance(node.ctx, ast.Store) else set()
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names - own if name.startswith("_") and not name.startswith("__")}
