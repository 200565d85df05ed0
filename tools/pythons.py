"""Find the Pythons of this machine: `python -m tools.pythons 3.12` prints the path of one.

uv is asked first, then pyenv, whose shims do not run a version that is not the chosen one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(version: str) -> str | None:
    """Return the path of Python *version* (such as `3.12`), None if this machine has none."""
    command = ["python3", "-m", "uv", "python", "find", version]
    asked = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if asked.returncode == 0:
        return asked.stdout.strip()
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    return str(found[-1]) if found else None


def main() -> int:
    """Print where the Python is that the command line names; exit with 1 if it is nowhere."""
    path = python(sys.argv[1])
    if path:
        print(path)
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
