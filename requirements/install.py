"""Install the pinned requirements into the running Python's environment, in order.

One pip call cannot do it: see the comments in the files. A second run with the same files
does nothing, as long as the pinned packages are still there.

    python requirements/install.py [extra requirements file ...]
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH = HERE / "1-torch.txt"
TRITON = HERE / "5-triton.txt"


def pins(path: Path) -> dict[str, str]:
    """``{distribution: version}`` of the ``name==version`` lines of a requirements file."""
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def wrong(path: Path) -> list[str]:
    """Pins of ``path`` that the environment does not meet, each as one sentence."""
    found = []
    importlib.invalidate_caches()  # pip changes the environment under this process
    for name, version in pins(path).items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "nothing"
        if installed.partition("+")[0] != version:  # 2.13.0+cpu meets the pin 2.13.0
            found.append(f"{path.name}: expected {name} {version}, found {installed}")
    return found


def main(extra: list[str]) -> int:
    """Install what is missing; return 1 when pip fails or leaves a pin unmet."""
    steps: list[tuple[Path, list[str]]] = [
        (TORCH, []),
        # The constraint keeps a dependency from replacing torch.
        (HERE / "2-harness.txt", ["-c", str(TORCH)]),
        (HERE / "3-oracles.txt", ["-c", str(TORCH)]),
        *((Path(path).resolve(), ["-c", str(TORCH)]) for path in extra),
        (HERE / "4-no-deps.txt", ["--no-deps"]),
        *((path, ["--no-deps"]) for path in [HERE / "4-python-3.11.txt"] if sys.version_info < (3, 12)),
        (TRITON, ["--no-deps"]),
    ]
    for path, options in steps:
        if not wrong(path):
            continue
        print(f"installing {path.name}: {', '.join(pins(path))}", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "-r", str(path), *options]
        if subprocess.run(pip, check=False).returncode:
            print(f"{path.name}: pip failed; the lines above say why", file=sys.stderr)
            return 1
    unmet = [sentence for path, _ in steps for sentence in wrong(path)]
    for sentence in unmet:
        print(sentence, file=sys.stderr)
    return 1 if unmet else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
