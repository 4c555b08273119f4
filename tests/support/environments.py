"""Environments with a wheel of ours, far from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def example_wheel(example: Path, folder: Path) -> Path:
    """The wheel of a distribution in `examples/`."""
    source = shutil.copytree(example, folder / "source" / example.name)  # building leaves files behind
    wheels = folder / "wheels"
    build = (*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))
    subprocess.run(build, check=True)
    (wheel,) = wheels.iterdir()
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder, and a place to work in."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, requirements: Iterable[object], borrowed: bool = False) -> Environment:
        """Install wheels or requirements. `borrowed`: what they depend on comes from the environment we run in."""
        environment = cls(folder)
        venv.create(folder / "env", with_pip=False)
        environment.work.mkdir()
        if borrowed:
            # The folders' own .pth files are not read there, so that the checkout's editable install is out of reach.
            paths = [path for path in sys.path if path.endswith("-packages")]
            (environment.packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in paths))
        options = ("--no-deps", "--no-index") if borrowed else ()
        install = (*PIP, "--python", environment.bin / "python", "install", *options, *requirements)
        subprocess.run([str(word) for word in install], check=True)
        where = environment.run("python", "-c", "import specdec_hal; print(specdec_hal.__file__)")
        assert where.stdout.startswith(str(environment.packages)), where.stderr
        return environment

    @property
    def bin(self) -> Path:
        return self.folder / "env" / "bin"

    @property
    def packages(self) -> Path:
        (packages,) = self.folder.glob("env/lib/python3*/site-packages")
        return packages

    @property
    def work(self) -> Path:
        """Where commands run."""
        return self.folder / "work"

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command that sees nothing of the checkout, and finds the environment's programs first."""
        variables = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYTEST", "SPECDEC"))}
        variables["PATH"] = f"{self.bin}{os.pathsep}{variables['PATH']}"
        words = [str(word) for word in command]
        return subprocess.run(
            words, cwd=self.work, env=variables, capture_output=True, text=True, check=False, timeout=600
        )

    def output(self, *command: object, status: int = 0, stream: str = "stdout") -> str:
        """The output on `stream` of a command with this exit status."""
        done = self.run(*command)
        assert done.returncode == status, (
            f"{command}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return str(getattr(done, stream))
