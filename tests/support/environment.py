"""A clean environment: this package and examples installed from wheels, away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def call(*command: object, cwd: Path, status: int = 0, stream: str = "stdout") -> str:
    """What a command that ends with this status wrote to `stream`; the environment tells it nothing of the checkout."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYTEST", "SPECDEC"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, (
        f"{command}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return str(getattr(done, stream))


def fresh_environment(folder: Path, *examples: Path) -> Path:
    """An environment with this package as a wheel, the examples, and the dependencies of the environment we run in.

    The wheel's native part comes from the build folder, if `make setup` has filled it. Skips where none can be built.
    """
    # Asked of the metadata: looking for the module pip makes setuptools give up its distutils in this process, and then
    # Paddle cannot be imported any more.
    for name in ("pip", "setuptools", "scikit-build-core"):
        if not any(metadata.distributions(name=name)):
            pytest.skip(f"{name} is not installed, and without it no wheel can be built (make setup)")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    wheels, environment = folder / "wheels", folder / "environment"
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", wheels, ROOT, cwd=folder)
    copies = [shutil.copytree(example, folder / example.name) for example in examples]  # building leaves files behind
    call(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", wheels, *copies, cwd=folder)
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    # The folders' own .pth files are not read there, so that the checkout's editable install is out of reach.
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    found = sorted(wheels.glob("*.whl"))
    assert len(found) == 1 + len(examples)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    call(*pip, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", *found, cwd=folder)
    return environment
