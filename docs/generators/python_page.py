"""The page on the Python interface, docs/python.md, from its docstrings (``make docs``)."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import tokenmill.consumers
import tokenmill.consumers.prometheus
import tokenmill.documents
import tokenmill.errors
import tokenmill.store

HEAD: Final = """\
# The Python interface

<!-- Made by `make docs` from the docstrings; a test compares. -->

What a program may import. [Training on a store](training.md) explains how it works together, with examples.
"""
GROUPS: Final[Mapping[str, tuple[str, Any, tuple[str, ...]]]] = {
    "Training loops": (
        "From `tokenmill.consumers`: steps in the order that all ranks share.",
        tokenmill.consumers,
        ("Batches", "Mixture", "StepDataset", "MixtureDataset"),
    ),
    "What a step gives": (
        "From `tokenmill.consumers`; loops make these.",
        tokenmill.consumers,
        (
            "Batch",
            "XY",
            "ModelInputs",
            "BatchDocuments",
            "ContextPart",
            "Source",
            "Metrics",
            "Behind",
            "StreamShare",
        ),
    ),
    "Samples and documents by number": (
        "From `tokenmill.consumers`, for samplers and loaders of your own.",
        tokenmill.consumers,
        (
            "EraDataset",
            "Windows",
            "Documents",
            "StoredDocument",
            "PaddedBatches",
            "PaddedBatch",
            "EraSampler",
            "BucketSampler",
            "StratifiedSampler",
        ),
    ),
    "Metrics of a run": (
        "From `tokenmill.consumers.prometheus` ([what they mean](trainer_metrics.md)).",
        tokenmill.consumers.prometheus,
        ("BatchesCollector", "serve_metrics"),
    ),
    "Reading a store": (
        "From `tokenmill.store`, with numpy alone: blocks by number, documents in them, eras.",
        tokenmill.store,
        (
            "open_partition",
            "PartitionReader",
            "DocumentPiece",
            "Pieces",
            "open_eras",
            "EraReader",
            "streams_in",
            "partitions_in",
            "read_stream",
            "StreamInfo",
            "read_tokenizer",
        ),
    ),
    "Functions of your own": (
        "From `tokenmill.documents`: what [they](own_functions.md) take and return.",
        tokenmill.documents,
        ("Document",),
    ),
}
"""Heading, what stands below it, and the public names of a module."""
GIVEN: Final = frozenset({"BatchDocuments", "EraReader", "PartitionReader"})
"""Classes whose objects a program gets from others, whatever arguments they have."""
SHORT: Final = 80
"""Characters of arguments that are one line."""
_SECTION: Final = re.compile(r"^(Args|Raises|Yields|Returns):\n((?:(?:    .*)?\n?)+)", re.MULTILINE)
_SESSION: Final = re.compile(r"^ *>>> .*\n(?:^ *\S.*\n?)*", re.MULTILINE)


def page() -> str:
    """Return docs/python.md."""
    parts = [HEAD]
    known: dict[Any, str] = {}
    for heading, (introduction, module, names) in GROUPS.items():
        parts += [f"## {heading}\n", f"{introduction}\n"]
        parts += [part for name in names for part in _described(name, getattr(module, name), known)]
    tree = str(tokenmill.errors.__doc__).split("::\n")[1].rpartition("\n\n")[0]
    parts += ["## Errors\n", "From `tokenmill.errors`; each number is the exit code of a command that ends with it.\n"]
    parts += [f"```\n{textwrap.dedent(tree).strip()}\n```\n"]
    return "\n".join(parts)


def _described(name: str, what: Any, known: dict[Any, str]) -> Iterator[str]:
    """Yield what is said of a function or class; ``known`` are members that another class has, and was described."""
    yield f"### {name}\n"
    function = vars(what)["__init__"] if _is_opened(what) else what
    if inspect.isfunction(function):
        yield f"```python\n{name}{_signature(function, many_lines=True)}\n```\n"
    yield _text(what)
    if not inspect.isclass(what):
        return
    if inspect.isfunction(function):
        yield _text(function)
    members = _members(what)
    new = [member for member in members.values() if member not in known]
    if listed := [*_fields(what), *(_member(each, member) for each, member in members.items() if member in new)]:
        yield "\n".join(listed) + "\n"
    for other in dict.fromkeys(known[member] for member in members.values() if member in known):
        same = [f"`{each}`" for each, member in members.items() if known.get(member) == other]
        yield f"As in [{other}](#{other.lower()}): {', '.join(same)}.\n"
    known.update(dict.fromkeys(new, name))


def _is_opened(what: Any) -> bool:
    """Tell whether programs make such objects: a class that says with which arguments."""
    return (
        inspect.isclass(what)
        and what.__name__ not in GIVEN
        and any(node.name == "__init__" for node in ast.walk(_parsed(what)) if isinstance(node, ast.FunctionDef))
    )


def _fields(kind: type) -> Iterator[str]:
    """Yield the fields of a class, and attributes that have a docstring, as list items."""
    for base in _own_bases(kind):
        blocks = [node.body for node in ast.walk(_parsed(base)) if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        for line, after in (pair for block in blocks for pair in pairwise([*block, None])):
            target: ast.expr | None = line.target if isinstance(line, ast.AnnAssign) else None
            if isinstance(line, ast.Assign):
                target = line.targets[0]
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "_")
            said = after.value if isinstance(after, ast.Expr) else None
            if not name.startswith("_") and isinstance(said, ast.Constant) and isinstance(said.value, str):
                yield _item(f"`{name}`", inspect.cleandoc(said.value))


def _members(kind: type) -> dict[str, Any]:
    """Return the public methods and properties of a class, those of its own bases as well, by name."""
    found: dict[str, Any] = {}
    for base in _own_bases(kind):
        for name, member in vars(base).items():
            is_code = isinstance(member, (property, classmethod, staticmethod, cached_property)) or inspect.isfunction(
                member
            )
            if not name.startswith("_") and is_code:
                found.setdefault(name, member)
    return dict(sorted(found.items()))


def _member(name: str, member: Any) -> str:
    """Return a list item on a method or property."""
    function = getattr(member, "__func__", member)
    arguments = _signature(function) if inspect.isfunction(function) else ""
    return _item(f"`{name}{arguments}`", inspect.cleandoc(function.__doc__ or ""))


def _own_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("tokenmill")]


def _parsed(what: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(what)))


def _signature(function: Callable[..., Any], *, many_lines: bool = False) -> str:
    """Return the arguments as they are written, and what is returned; of ``many_lines``, one for each argument."""
    node = next(
        node for node in ast.walk(_parsed(function)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    arguments = node.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        del arguments.args[0]
    without = len(arguments.args) - len(arguments.defaults)
    given = list(map(_argument, arguments.args, [*[None] * without, *arguments.defaults]))
    given += ["*"] if arguments.kwonlyargs and not arguments.vararg else []
    given += [f"*{ast.unparse(arguments.vararg)}"] if arguments.vararg else []
    given += map(_argument, arguments.kwonlyargs, arguments.kw_defaults)
    given += [f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else []
    returned = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns and node.name != "__init__" else ""
    written = ", ".join(given)
    if many_lines and len(written) > SHORT:
        written = "".join(f"\n    {one}," for one in given) + "\n"
    return f"({written}){returned}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")


def _text(what: Any) -> str:
    """Return a docstring as Markdown."""
    return _markdown(inspect.cleandoc(what.__doc__ or "")) + "\n"


def _item(head: str, docstring: str) -> str:
    """Return a list item: its head, then its docstring, indented below."""
    first, _, rest = _markdown(docstring).partition("\n\n")
    body = textwrap.indent(f"\n\n{rest}", "    ") if rest else ""
    return f"- {head}: {' '.join(first.split())}{body}"


def _markdown(docstring: str) -> str:
    text = docstring.replace("``", "`")
    text = _SESSION.sub(lambda found: f"```pycon\n{textwrap.dedent(found[0]).rstrip()}\n```\n", text)
    return _SECTION.sub(lambda found: _section(found[1], textwrap.dedent(found[2])), text).strip()


def _section(title: str, body: str) -> str:
    """Return arguments or errors as a list."""
    entries = re.findall(r"^(\S[^:\n]*): ((?:.*\n?)(?:^[ ]+.*\n?)*)", body, re.MULTILINE)
    items = [f"- `{name}`: {' '.join(said.split())}" for name, said in entries]
    return f"{title}:\n\n{chr(10).join(items) if items else body}\n" if title != "Args" else "\n".join(items) + "\n\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is this program's output
