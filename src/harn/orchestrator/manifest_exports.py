"""Exports: from `handlers::on_task` in the manifest to a callable.

An export is a Python file beside the manifest or an importable module. A handler is a public name
at its top level. Only names in the manifest are looked up, never names from a job or a request.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from harn.error_text import error_text
from harn.errors import ManifestError, did_you_mean
from harn.ids import digest
from harn.private_files import check_private

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_STAMP = "__harn_stamp__"
"""The attribute of a loaded module with its file's time and size: an unchanged file is not run
again."""
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


class Exports:
    """The modules that a manifest exports, loaded when they are first used."""

    def __init__(self, directory: Path, sources: Mapping[str, str]) -> None:
        self._directory = directory
        self._sources = dict(sources)
        self._loaded: dict[str, ModuleType] = {}

    @property
    def names(self) -> Collection[str]:
        """The exports' names."""
        return self._sources.keys()

    def resolve(self, reference: str) -> Any:
        """Return the object that `export::name` names; raise `ManifestError` if there is none."""
        export, name = split_reference(reference)
        if export not in self._sources:
            near = did_you_mean(export, self._sources)
            raise ManifestError(f"{reference!r}: [exports] has no {export!r}{near}")
        module = self._module(export)
        found = getattr(module, name, None)
        if found is None:
            public = [each for each in vars(module) if _NAME.fullmatch(each)]
            near = did_you_mean(name, public)
            raise ManifestError(f"{reference!r}: {self._sources[export]} has no {name!r}{near}")
        if not callable(found) and not hasattr(found, "deliver"):
            raise ManifestError(f"{reference!r} is a {type(found).__name__}, not a function")
        return found

    def _module(self, export: str) -> ModuleType:
        if export not in self._loaded:
            source = self._sources[export]
            try:
                self._loaded[export] = load(self._directory, source)
            except ManifestError:
                raise
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                reason = error_text(error)
                raise ManifestError(f"{source} cannot be imported: {reason}") from error
        return self._loaded[export]


def split_reference(reference: str) -> tuple[str, str]:
    """Split `export::name`; raise `ManifestError` for anything else.

    >>> split_reference("handlers::on_task")
    ('handlers', 'on_task')
    """
    export, separator, name = reference.partition("::")
    if not separator or not _NAME.fullmatch(export) or not _NAME.fullmatch(name):
        raise ManifestError(f'{reference!r}: a handler of this manifest is "export::function"')
    return export, name


def check_source(source: str) -> str:
    """Return *source* if it may be an export: `file.py` below the manifest, or a module's name."""
    if not isinstance(source, str):
        raise ManifestError("an export is a file or a module, given as text")
    if source.endswith(".py"):
        path = Path(source)
        if path.is_absolute() or ".." in path.parts or "\0" in source:
            raise ManifestError(f"{source!r}: a file must lie beside the manifest or below it")
    elif not _MODULE.fullmatch(source):
        raise ManifestError(f'{source!r} is neither a file ("handlers.py") nor a module')
    return source


def load(directory: Path, source: str) -> ModuleType:
    """Import *source*: a file by its path, under a generated module name, or a module by name.

    A plain name means the file beside the manifest if there is one. A file that has changed is run
    again.
    """
    if not source.endswith(".py"):
        beside = directory / f"{source}.py"
        if "." in source or not beside.is_file():
            _check_module(source)
            return importlib.import_module(source)
        source = beside.name
    path = (directory / source).resolve()
    if not path.is_file():
        raise ManifestError(f"{source} does not exist beside the manifest")
    if not path.is_relative_to(directory.resolve()):
        raise ManifestError(f"{source} leads out of the manifest's directory")
    check_private(path, "handler module", error=ManifestError)
    name = f"harn_exports_{digest(str(path), length=16)}"
    about = path.stat()
    stamp = (about.st_mtime_ns, about.st_size)
    known = sys.modules.get(name)
    if known is not None and vars(known).get(_STAMP) == stamp:
        return known
    loader = _FromSource(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ManifestError(f"{source} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling in processes look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if known is None:
            del sys.modules[name]
        else:
            sys.modules[name] = known
        raise
    setattr(module, _STAMP, stamp)
    return module


class _FromSource(importlib.machinery.SourceFileLoader):
    """Runs a file as it is now, and keeps no compiled copy.

    Python takes such a copy for current if the file has the same length and was changed within the
    same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _check_module(name: str) -> None:
    """Raise if other users can write to a module's file or its packages', before it is run."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        try:
            # To find a module, Python runs the packages above it: they are checked first.
            spec = importlib.util.find_spec(".".join(parts[:count]))
        except (ImportError, ValueError):
            return  # the import raises a better error
        if spec is not None and spec.origin is not None:
            check_private(Path(spec.origin), "handler module", error=ManifestError)
