"""Modules of a user's own: the only place that looks for modules in the working directory.

Commands run in folders of data, which somebody else may have filled: a file ``http.py`` there must never be imported in
place of the library's, nor one whose name a library merely tries (``uvloop``, ``simplejson``). So the working directory
is on no module path. Once a setting (``function``, ``decode``) or ``--map`` names a function there, its module is found
in it, and what that module's own code imports. It is looked in last: what Python finds elsewhere is never taken from
there.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from types import FrameType, ModuleType
from typing import Any

log = logging.getLogger(__name__)


class OwnModuleFinder(MetaPathFinder):
    """Finds modules in one folder: those that a setting named, and those that modules of the folder import."""

    def __init__(self, folder: str) -> None:
        """Look in ``folder``, an absolute path."""
        self.folder = folder
        self.named: set[str] = set()
        """Modules and packages without a dot in their names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return how a module is loaded; None where it is not there, or where the importing code may not use it.

        Submodules are their package's (``path``), which Python looks in without asking here.
        """
        if path is not None or not (fullname in self.named or self._is_in_here(_importing_file())):
            return None
        return PathFinder.find_spec(fullname, [self.folder], target)

    def _is_in_here(self, file: str) -> bool:
        return os.path.isabs(file) and os.path.commonpath([self.folder, file]) == self.folder  # noqa: PTH117


def import_own(path: str) -> Any:
    """Return what ``path`` (``module:function``) names, looked for in the working directory last.

    The log says which file it is from: a settings file may name a function, and so decide what code runs.

    Raises:
        ValueError: the path is not written like that.
        AttributeError: the module has nothing of that name; the message names the module's file.
        Exception: whatever the module raises when it is imported.

    """
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise ValueError('write "module:function"')
    _let_find(name.partition(".")[0])
    module = import_module(name)
    place = getattr(module, "__file__", None) or "the interpreter"
    try:
        found = attrgetter(attribute)(module)
    except AttributeError as error:
        raise AttributeError(f"{error}; the module is that of {place}") from error
    log.info("%s is code of %s", path, place)
    return found


def _let_find(name: str) -> None:
    """Let a module or package be found in the working directory."""
    try:
        here = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    except OSError:  # it was removed meanwhile, and holds no module
        return
    known = (finder for finder in sys.meta_path if isinstance(finder, OwnModuleFinder) and finder.folder == here)
    finder = next(known, None)
    if finder is None:
        finder = OwnModuleFinder(here)
        sys.meta_path.append(finder)
    finder.named.add(name)


def _importing_file() -> str:
    """Return the file of the code whose import is under way; empty where that is unknown."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to find the importing code
    while frame is not None:
        if frame.f_globals is not globals() and not _is_machinery(frame.f_globals.get("__name__")):
            return str(frame.f_globals.get("__file__") or "")
        frame = frame.f_back
    return ""


def _is_machinery(name: object) -> bool:
    return isinstance(name, str) and (name == "importlib" or name.startswith(("importlib.", "_frozen_importlib")))
