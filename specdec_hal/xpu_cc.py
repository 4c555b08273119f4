"""Compiling kernels in the XPU dialect, unmodified, into programs and libraries for this machine.

A kernel file (``.xpu``) is C++ with the dialect's qualifiers; the emulator's headers give them a meaning, so that g++
compiles it as it is. Host files may launch with ``kernel<<<clusters, cores, stream>>>(args)``, which no C++ compiler
reads: :func:`rewrite_launches` turns that into a call. Everything needed is installed in ``specdec_hal/xpu_sim``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_hal.errors import BackendUnavailableError, CompileError
from specdec_hal.native import library_path
from specdec_hal.xpu_launches import rewrite_launches

MODES = ("fast", "asan", "strict")
KERNEL_SUFFIXES = (".xpu",)
LINKED = (".o", ".a", ".so")
STANDARD = "-std=gnu++17"
DEVICE = ("-D__xpu__=1", "-D__XPU3__=1")


@dataclass(frozen=True)
class Toolchain:
    """The installed emulator: `include` and `lib` folders, and the file of compiler flags by mode."""

    root: Path

    @property
    def include(self) -> Path:
        """What goes after -I."""
        return self.root / "include"

    def archive(self, name: str) -> str:
        """A static library's path."""
        return str(self.root / "lib" / f"lib{name}.a")

    def flags(self, mode: str) -> list[str]:
        """The compiler flags that a mode adds on this machine."""
        found: list[str] = []
        names = (mode, f"{mode}.{platform.machine()}")
        for line in (self.root / "modes.txt").read_text(encoding="utf-8").splitlines():
            name, _, flags = line.partition(":")
            if name in names:
                found += flags.split()
        return found


def toolchain() -> Toolchain:
    """The toolchain of this installation.

    Raises:
        BackendUnavailableError: the native parts were not built.
    """
    # Beside the native libraries, which in an editable install are elsewhere than the Python sources.
    library = library_path("specdec_common")
    root = library.parent.parent / "xpu_sim" if library is not None else Path(__file__).parent / "xpu_sim"
    if not (root / "modes.txt").is_file():
        raise BackendUnavailableError(
            f"expected the emulator's headers and libraries in {root}, found none; build them: `make setup` in a "
            "clone, or `pip install --no-build-isolation -e .` in your own environment"
        )
    return Toolchain(root)


@dataclass(frozen=True)
class Build:
    """What to compile, and how.

    `sources`: kernel files, C++ files, and objects or libraries to link. `defines` and `includes`: as after -D and -I.
    `flags`: further compiler flags, last, so that they win. `shared`: a library instead of a program.
    """

    sources: tuple[Path, ...]
    output: Path
    mode: str = "fast"
    shared: bool = False
    defines: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def compile_command(self, tools: Toolchain, source: Path, text: Path, obj: Path) -> list[str]:
        """The command that compiles one source; `text` is what the compiler reads, with launches rewritten."""
        kernel = source.suffix in KERNEL_SUFFIXES
        command = [compiler(), STANDARD, "-fPIC", f"-I{tools.include}", *tools.flags("every")]
        # Only kernels are instrumented by the strict mode: what the host does is not the device's.
        mode = self.mode if kernel or self.mode == "asan" else "fast"
        command += tools.flags(mode)
        command += DEVICE if kernel else ()
        command += [f"-D{define}" for define in self.defines]
        # A quoted include is looked up beside the user's file, also where a rewritten copy is compiled.
        command += ["-iquote", str(source.parent)]
        command += [f"-I{folder}" for folder in self.includes]
        return [*command, *self.flags, "-x", "c++", "-c", str(text), "-o", str(obj)]

    def link_command(self, tools: Toolchain, inputs: Sequence[str]) -> list[str]:
        """The command that links objects and libraries."""
        command = [compiler(), *(["-shared"] if self.shared else []), *inputs]
        whole = [] if self.shared else [tools.archive("xpu_sim_program")]
        if self.mode == "asan":
            command.append("-fsanitize=address")
            whole.append(tools.archive("xpu_sim_asan"))
        command += ["-Wl,--whole-archive", *whole, "-Wl,--no-whole-archive"] if whole else []
        command += [tools.archive("xpu_sim_strict")] if self.mode == "strict" else []
        return [*command, tools.archive("xpu_sim"), "-pthread", *self.flags, "-o", str(self.output)]


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else g++.

    Raises:
        BackendUnavailableError: there is none.
    """
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise BackendUnavailableError(f"expected a C++ compiler, found no {name}; install g++, or set CXX to another")
    return name


def build(what: Build) -> tuple[int, list[list[str]]]:
    """Compile and link. Gives the compiler's exit status and the commands that were run.

    The compiler's messages go to standard error as it writes them; after the first failure nothing more is run.

    Raises:
        CompileError: a file is missing or a launch in it incomplete: nothing for the compiler to say.
        BackendUnavailableError: no compiler, or the emulator is not built.
    """
    tools = toolchain()
    _check(what)
    commands: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="xpu-cc-") as folder:
        inputs = []
        for number, source in enumerate(what.sources):
            if source.suffix in LINKED:
                inputs.append(str(source))
                continue
            text = _readable(source, Path(folder) / f"{number}.cpp")
            inputs.append(str(Path(folder) / f"{number}.o"))
            commands.append(what.compile_command(tools, source, text, Path(inputs[-1])))
            status = subprocess.run(commands[-1], check=False).returncode
            if status != 0:
                return status, commands
        commands.append(what.link_command(tools, inputs))
        return subprocess.run(commands[-1], check=False).returncode, commands


def _check(what: Build) -> None:
    if what.mode not in MODES:
        raise CompileError(f"expected a mode ({' | '.join(MODES)}), got '{what.mode}'; choose one of them")
    for source in what.sources:
        if not source.is_file():
            raise CompileError(f"expected a source file, got {source}, which does not exist; check the path")
    if not what.output.parent.is_dir():
        raise CompileError(f"expected -o in a folder that exists, got {what.output}; make the folder first")
    if what.output in what.sources:
        raise CompileError(f"expected -o to name another file than the sources, got {what.output}; name the output")


def _readable(source: Path, copy: Path) -> Path:
    """The source itself, or a copy with its launches rewritten whose lines count as the source's."""
    text = source.read_text(encoding="utf-8", errors="surrogateescape")
    rewritten = rewrite_launches(text, str(source))
    if rewritten == text:
        return source
    name = str(source).replace("\\", "\\\\").replace('"', '\\"')
    header = f'#include "xpu_sim/chevron.h"\n#line 1 "{name}"\n'
    copy.write_text(header + rewritten, encoding="utf-8", errors="surrogateescape")
    return copy
