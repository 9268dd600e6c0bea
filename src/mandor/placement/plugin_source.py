"""Finds plugins in the package, in Python entry points, and in `.py` files of a folder."""

import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from mandor.errors import Invalid
from mandor.lib.owned_file import check_folder, read_owned
from mandor.placement.built_in import BUILT_IN
from mandor.placement.framework.plugin_factory import Registered
from mandor.placement.framework.points import POINTS

GROUP = "mandor.plugins"
FILE_MOST = 1024 * 1024

Registry = Mapping[str, Registered]


def find_plugins(folder: Path | None = None, points: Iterable[EntryPoint] | None = None) -> Registry:
    """Return every plugin by name; raise `Invalid` if two plugins have the same name."""
    found: dict[str, Registered] = {name: Registered(cls) for name, cls in BUILT_IN.items()}
    others = [_from_entry_point(point) for point in (entry_points(group=GROUP) if points is None else points)]
    if folder is not None:
        others += [each for file in plugin_files(folder) for each in _from_file(file)]
    for each in others:
        known = found.setdefault(each.name, each)
        if known is not each:
            raise Invalid(
                f"two plugins are called {each.name}: one of {known.origin or 'the package'}, one of {each.origin}",
                hint="give yours another name",
                plugin=each.name,
            )
    return found


def plugin_files(folder: Path) -> list[Path]:
    """Return the plugin files of a folder; files that begin with an underscore are ignored."""
    try:
        check_folder(folder)
        return sorted(path for path in folder.iterdir() if path.suffix == ".py" and not path.name.startswith("_"))
    except OSError as error:
        raise Invalid(f"cannot read the plugin folder {folder}: {error.strerror}") from error


def _from_entry_point(point: EntryPoint) -> Registered:
    origin = f"the entry point {point.name} = {point.value}"
    try:
        cls = point.load()
    except Exception as error:  # third-party code
        raise Invalid(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error
    if not _is_plugin(cls):
        raise Invalid(f"{origin} is not a plugin class", hint="a plugin subclasses a point, and has a `name`")
    return Registered(cls, point.dist.version if point.dist else "0", origin)


def _from_file(path: Path) -> list[Registered]:
    try:
        source = read_owned(path)
    except OSError as error:
        raise Invalid(f"cannot read the plugin file {path}: {error.strerror}", file=str(path)) from error
    if len(source) > FILE_MOST:
        raise Invalid(f"{path} has {len(source):,} bytes; at most {FILE_MOST:,} are allowed", file=str(path))
    version = hashlib.sha256(source).hexdigest()[:12]
    module = _module(path, source, version)
    classes = [each for each in vars(module).values() if _is_plugin(each) and each.__module__ == module.__name__]
    if not classes:
        raise Invalid(
            f"there is no plugin in {path}",
            hint="a plugin subclasses a point, and has a `name`; a file of other things begins with an underscore",
            file=str(path),
        )
    return [Registered(cls, version, str(path)) for cls in classes]


def _module(path: Path, source: bytes, version: str) -> ModuleType:
    """Load a file as a module of its own for each version, so that running calls finish with the old code."""
    stem = f"mandor_plugin_{path.stem}_"
    name = stem + version
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # type hints are looked up there
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - running it is what a plugin is for
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise _unusable(path, error) from error
    for other in [each for each in sys.modules if each.startswith(stem) and each != name]:
        del sys.modules[other]
    return module


def _unusable(path: Path, error: Exception) -> Invalid:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = (error.lineno or 1) if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 1
    text = error.msg if isinstance(error, SyntaxError) else f"{type(error).__name__}: {error}"
    return Invalid(f"{path}:{line}: this plugin cannot be loaded: {text}", file=str(path), line=line)


def _is_plugin(value: object) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, tuple(POINTS.values()))
        and not inspect.isabstract(value)
        and isinstance(getattr(value, "name", None), str)
    )
