"""The one place that imports upstream code.

Hugging Face publishes a package that is also named ``kernels``. transformers, bitsandbytes
and others look it up (``find_spec("kernels")``, ``from kernels import get_kernel``), would
find ours, and then break or misbehave. So upstream is imported with our package and our
root out of sight; afterwards both live in one process, ours under ``kernels`` in
``sys.modules`` and the other, if there is one, inside the modules that imported it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import os
import pathlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

ROOT = pathlib.Path(__file__).resolve().parent.parent

_SHADOWED = "kernels"

# One lock for every import: while it is held, ``import kernels`` finds nothing of ours in
# any thread, so import what you need of ours before you start threads that load upstream.
_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}
_their_kernels: dict[str, ModuleType] = {}
_depth = 0


class Missing(Exception):
    """An upstream module cannot be had.

    Attributes:
        reason: one sentence, fit for a report line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def version_of(distribution: str) -> str | None:
    """Installed version of a distribution, or None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def load(module: str, *, bare_parents: Sequence[str] = ()) -> ModuleType:
    """Import ``module`` from upstream, with our ``kernels`` package hidden from it.

    Args:
        module: dotted name.
        bare_parents: packages whose ``__init__`` must not run, outermost first. Each becomes a
            module object with nothing but its search path. A parent that is already imported
            is left as it is.

    Returns:
        The module. Successes are remembered; a failure is tried again at the next call.

    Raises:
        Missing: the package is not installed, or the import failed. Nothing that the failed
            import put under a bare parent stays behind.
    """
    with _lock:
        if module in _loaded:
            return _loaded[module]
        with hidden(), _import_environment():
            top = module.partition(".")[0]
            before = set(sys.modules)
            try:
                if top not in sys.modules and find_spec(top) is None:
                    raise Missing(f"the package {top} is not installed")
                for parent in bare_parents:
                    _add_bare(parent)
                found = importlib.import_module(module)
            except Exception as error:
                _forget(bare_parents, before)
                if isinstance(error, Missing):
                    raise
                message = " ".join(str(error).split())
                raise Missing(f"import of {module} failed with {type(error).__name__}: {message}") from error
        _loaded[module] = found
        return found


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Hide our ``kernels`` package and our root from imports, and restore both at exit.

    For upstream code that imports late, in a function. May be nested. A real Hugging Face
    ``kernels`` that upstream imports meanwhile is kept aside and comes back at the next call.
    """
    global _depth
    with _lock:
        if _depth:
            _depth += 1
            try:
                yield
            finally:
                _depth -= 1
            return
        ours = {name: entry for name, entry in _kernels_modules().items() if _is_ours(entry)}
        taken = [(index, entry) for index, entry in enumerate(sys.path) if _is_root(entry)]
        _drop(ours)
        others = set(_kernels_modules())
        if not others:
            sys.modules.update(_their_kernels)
        for _, entry in taken:
            sys.path.remove(entry)
        _depth = 1
        try:
            yield
        finally:
            _depth = 0
            for index, entry in taken:
                sys.path.insert(index, entry)
            # Aside even when ours was not imported yet: a later ``import kernels`` must find ours.
            theirs = {name: entry for name, entry in _kernels_modules().items() if name not in others}
            _their_kernels.update(theirs)
            _drop(theirs)
            sys.modules.update(ours)


def _kernels_modules() -> dict[str, ModuleType]:
    return {
        name: entry
        for name, entry in list(sys.modules.items())
        if name == _SHADOWED or name.startswith(_SHADOWED + ".")
    }


def _drop(names: Iterable[str]) -> None:
    for name in names:
        sys.modules.pop(name, None)


def _is_ours(module: ModuleType) -> bool:
    home = ROOT / _SHADOWED
    places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
    paths = [pathlib.Path(place).resolve() for place in places if place is not None]
    return any(path == home or home in path.parents for path in paths)


def _is_root(entry: object) -> bool:
    # "" and relative entries mean the current directory, which may be our root.
    return isinstance(entry, str) and pathlib.Path(entry or os.curdir).resolve() == ROOT


def _add_bare(name: str) -> None:
    """Put a module that has only a search path into ``sys.modules``; executes nothing."""
    if name in sys.modules:
        return
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    so_far: list[str] = []
    for part in name.split("."):
        so_far.append(part)
        dotted = ".".join(so_far)
        spec = find_spec(dotted) if path is None else PathFinder.find_spec(dotted, path)
        if spec is None or spec.submodule_search_locations is None:
            raise Missing(f"the installed {so_far[0]} has no package {dotted}")
        path = spec.submodule_search_locations
    bare = ModuleType(name)
    # The spec too: find_spec() raises ValueError for a loaded module that has none.
    bare.__spec__ = spec
    bare.__path__ = list(path or ())
    sys.modules[name] = bare
    outer, _, last = name.rpartition(".")
    if outer in sys.modules:
        setattr(sys.modules[outer], last, bare)


def _forget(bare_parents: Sequence[str], before: set[str]) -> None:
    """Remove what a failed import left under packages whose ``__init__`` never ran."""
    tops = {parent.partition(".")[0] for parent in bare_parents}
    _drop(name for name in set(sys.modules) - before if name.partition(".")[0] in tops)


@contextlib.contextmanager
def _import_environment() -> Iterator[None]:
    """Environment that upstream modules read while they are imported.

    - bitsandbytes decorates its Python path with ``torch.compile(dynamic=False)``, which
      compiles for seconds at each new shape; the eager result is what is wanted. torch reads
      TORCHDYNAMO_DISABLE when ``torch.compile`` decorates, so setting it for the time of the
      import makes just these functions eager and leaves ``torch.compile`` alone for everybody
      else. (A bitsandbytes that was imported before keeps its compiled functions.)
    - GPTQModel else builds a C++ extension when a layer is first packed, much later than its
      import, hence not undone.
    """
    os.environ.setdefault("GPTQMODEL_DISABLE_PACK_EXT", "1")
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # Logged at each import on a CPU with AVX512-BF16, about a fused product nobody asked for.
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    logger.addFilter(_no_hub_kernel)
    try:
        yield
    finally:
        logger.removeFilter(_no_hub_kernel)
        if before is None:
            del os.environ["TORCHDYNAMO_DISABLE"]
        else:
            os.environ["TORCHDYNAMO_DISABLE"] = before


def _no_hub_kernel(record: logging.LogRecord) -> bool:
    return "kernels-community" not in record.getMessage()
