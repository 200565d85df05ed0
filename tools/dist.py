"""Build the wheel and the sdist into dist/, and try both as a user would.

    make dist                      # everything below
    make dist ONLY=tests           # with the whole suite run from the sdist

1. Each is built twice; the bytes must be equal. Times in them are those of the last commit.
2. `twine check --strict` reads what the package index would show.
3. The sdist is unpacked and its own tests run there.
4. The wheel is installed into an empty environment for each Python that it claims and this
   machine has: `harn demo` and `harn doctor` must end well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.pythons import python

ROOT = Path(__file__).parent.parent
UV = ("python3", "-m", "uv")
PYTHONS = ("3.11", "3.12", "3.13")
QUICK = ["tests/ground", "tests/sync", "tests/test_public_api.py", "tests/test_release.py"]


def main() -> int:
    """Build, check and try; stop at the first step that fails."""
    with tempfile.TemporaryDirectory(prefix="harn-dist-") as scratch:
        place = Path(scratch)
        place.chmod(0o755)  # PostgreSQL runs as another user, from the environment of the tests
        for step in (_build, _read, _test_the_sdist, _install):
            _say(str(step.__doc__))
            step(place)
    return 0


def _build(place: Path) -> None:
    """Build twice and compare."""
    first, second = ROOT / "dist", place / "again"
    for old in first.glob("harn_runtime-*"):
        old.unlink()
    for target in (first, second):
        _run([*UV, "build", "-q", "--out-dir", str(target)], SOURCE_DATE_EPOCH=_last_commit())
    for path in _built():
        if path.read_bytes() != (second / path.name).read_bytes():
            raise SystemExit(f"{path.name} is not the same when it is built again")


def _last_commit() -> str:
    """Return the time of the last commit; what was set already wins, as in an unpacked sdist."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return os.environ["SOURCE_DATE_EPOCH"]
    asked = ["git", "log", "-1", "--format=%ct"]
    return subprocess.check_output(asked, cwd=ROOT, text=True).strip()  # noqa: S603


def _built() -> list[Path]:
    found = sorted((ROOT / "dist").glob("harn_runtime-*"))
    if [path.suffix for path in found] != [".whl", ".gz"]:
        raise SystemExit(f"expected a wheel and an sdist in dist/, found {found}")
    return found


def _read(place: Path) -> None:
    """Read both with twine."""
    _run([*UV, "tool", "run", "twine", "check", "--strict", *map(str, _built())])


def _test_the_sdist(place: Path) -> None:
    """Run the tests of the unpacked sdist."""
    _, sdist = _built()
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    unpacked = place / sdist.name.removesuffix(".tar.gz")
    _run([*UV, "run", "pytest", *(sys.argv[1:] or QUICK)], cwd=unpacked)


def _install(place: Path) -> None:
    """Install the wheel into empty environments."""
    wheel, _ = _built()
    for version in PYTHONS:
        path = python(version)
        if path is None:
            _say(f"Python {version} is not on this machine: not tried")
            continue
        home = place / version
        _run([*UV, "venv", "-q", "--python", path, str(home)])
        _run([*UV, "pip", "install", "-q", "--python", str(home / "bin/python"), str(wheel)])
        for command in ("--version", "demo", "doctor"):
            _run([str(home / "bin/harn"), command], cwd=place, quiet=command == "demo")
        _say(f"Python {version}: harn demo and harn doctor end well")


def _run(command: list[str], cwd: Path = ROOT, quiet: bool = False, **extra: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HARN_")}
    for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"):
        environ.pop(name, None)
    out = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, cwd=cwd, env={**environ, **extra}, stdout=out)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
