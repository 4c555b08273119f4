"""Compiling kernels in the XPU dialect, unmodified, into programs and libraries for this machine.

A kernel file (``.xpu``) is C++ with the dialect's qualifiers, which the emulator's headers define for g++. Launches,
``kernel<<<clusters, cores, stream>>>(args)``, are first rewritten to calls (:mod:`specdec_hal_xpu.sources`). All files
are installed in ``specdec_hal/xpu_sim``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_hal.errors import BackendUnavailableError, CompileError
from specdec_hal.tensors.native import library_path
from specdec_hal_xpu.device import type_warnings, vector_assembly
from specdec_hal_xpu.sources import Sources
from specdec_hal_xpu.symbols import check_declarations

MODES = ("fast", "asan", "strict")
PROFILES = ("production", "portable")
KERNEL_SUFFIXES = (".xpu",)
LINKED = (".o", ".a", ".so")
STANDARD = "-std=gnu++17"
DEVICE = ("-D__xpu__=1", "-D__XPU3__=1")
# No build detects uninitialised values that the compiler has optimised away.
UNINITIALISED = ("-Wuninitialized", "-Wmaybe-uninitialized")


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
        """Compiler flags of a mode on this machine."""
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
    # Beside the native libraries, which an editable install separates from the sources.
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

    `sources`: kernel files, C++ files, and objects or libraries to link. `defines` and `includes`: arguments of -D and
    -I. `flags`: more compiler flags, which come last. `shared`: a library instead of a program. `compile_only`: an
    object of the only source. `dependencies`: output file for the object's headers, as a make rule. `profiles`:
    "production" or "portable", for all files, or GLOB=PROFILE for some; the last match counts; the default is
    "production", under which kernels in use have no findings. `coverage`: count how often each line of a kernel runs;
    the counts go to :attr:`counts` (:mod:`specdec_hal_xpu.coverage`).
    """

    sources: tuple[Path, ...]
    output: Path
    mode: str = "fast"
    shared: bool = False
    compile_only: bool = False
    dependencies: Path | None = None
    profiles: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    coverage: bool = False

    @property
    def counts(self) -> Path:
        """The folder for counts of a program built for coverage."""
        return self.output.with_name(f"{self.output.name}.coverage").absolute()

    def profile_of(self, source: Path) -> str:
        """Fences of a file: the author's alone ("portable") or also the vendor compiler's ("production")."""
        name = PROFILES[0]
        for given in self.profiles:
            pattern, _, profile = given.rpartition("=")
            if not pattern or source.match(pattern):
                name = profile
        return name

    def compile_command(self, tools: Toolchain, source: Path, text: Path, obj: Path) -> list[str]:
        """The command that compiles one source; `text`: the source with rewritten launches."""
        kernel = source.suffix in KERNEL_SUFFIXES
        command = [compiler(), STANDARD, "-fPIC", *tools.flags("every")]
        # The strict mode instruments only kernels, not host code.
        mode = self.mode if kernel or self.mode == "asan" else "fast"
        command += tools.flags(mode)
        command += (*DEVICE, *UNINITIALISED) if kernel else ()
        command += ["--coverage"] if kernel and self.coverage else []
        command += ["-DXPU_SIM_PRODUCTION=1"] if self.profile_of(source) == "production" else []
        command += [f"-D{define}" for define in self.defines]
        # Look up quoted includes beside the original, also for a rewritten copy.
        command += ["-iquote", str(source.parent)]
        # The emulator's headers come last: a project may have an xpu/plugin.h of its own.
        command += [f"-I{folder}" for folder in (*self.includes, tools.include)]
        if self.dependencies is not None:
            command += ["-MMD", "-MF", str(self.dependencies), "-MT", str(self.output)]
        return [*command, *self.flags, "-x", "c++", "-c", str(text), "-o", str(obj)]

    def link_command(self, tools: Toolchain, inputs: Sequence[str]) -> list[str]:
        """The command that links objects and libraries."""
        command = [compiler(), *(["-shared"] if self.shared else []), *inputs]
        # Called by the emulator before it ends a program with findings.
        command += ["--coverage", "-Wl,-u,__gcov_dump"] if self.coverage else []
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


def build(what: Build, messages: list[str] | None = None) -> tuple[int, list[list[str]]]:
    """Compile and link. Returns the compiler's exit status and the executed commands.

    The compiler's messages go to standard error, with warnings about differences of the device
    (:mod:`specdec_hal_xpu.device`); the first failure stops the build. With `messages`, those of a successful build are
    appended to it instead, line by line.

    Raises:
        CompileError: a missing file, an incomplete launch, or a kernel whose declaration differs from its definition.
        BackendUnavailableError: no compiler, or the emulator is not built.
    """
    tools = toolchain()
    _check(what)
    commands: list[list[str]] = []
    if what.coverage:
        shutil.rmtree(what.counts, ignore_errors=True)
        what.counts.mkdir()
    with tempfile.TemporaryDirectory(prefix="xpu_cc-") as folder:
        sources = Sources(Path(folder), what.includes)
        inputs: list[str] = []
        said: list[str] = []
        for number, source in enumerate(what.sources):
            if source.suffix in LINKED:
                inputs.append(str(source))
                continue
            text = sources.readable(source)
            assembly: list[str] = []
            if source.suffix in KERNEL_SUFFIXES:
                said += _say([one for one in sources.remarks(source, type_warnings) if one not in said], messages)
                assembly = sources.remarks(source, vector_assembly)
            # The counts of an object go beside it when the program runs.
            parts = what.counts if what.coverage else Path(folder)
            obj = what.output if what.compile_only else parts / f"{number}.o"
            inputs.append(str(obj))
            commands.append(what.compile_command(tools, source, text, obj))
            status = _compile(commands[-1], assembly, messages)
            if status != 0:
                return status, commands
        if what.dependencies is not None:
            what.dependencies.write_text(sources.original_names(what.dependencies.read_text()))
        if what.compile_only:
            return 0, commands
        check_declarations(inputs)
        commands.append(what.link_command(tools, inputs))
        return subprocess.run(commands[-1], check=False).returncode, commands


def _say(lines: Sequence[str], messages: list[str] | None) -> Sequence[str]:
    """Print the lines, or append them to `messages`; returns them."""
    if messages is not None:
        messages += lines
    elif lines:
        print("\n".join(lines), file=sys.stderr)
    return lines


def _compile(command: list[str], assembly: Sequence[str], messages: list[str] | None) -> int:
    """The compiler's exit status. `assembly`: what to print instead of the compiler's errors in vector assembly."""
    if messages is None and not assembly:
        return subprocess.run(command, check=False).returncode
    plain = [] if messages is None else ["-fno-diagnostics-show-caret"]
    done = subprocess.run([*command, *plain], stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    lines = done.stderr.splitlines()
    if done.returncode != 0 and assembly and any("asm" in line or "Assembler" in line for line in lines):
        lines = list(assembly[:1])  # the compiler comes so far only without other errors
    _say(lines, messages if done.returncode == 0 else None)
    return done.returncode


def _check(what: Build) -> None:
    if what.mode not in MODES:
        raise CompileError(f"expected a mode ({' | '.join(MODES)}), got '{what.mode}'; choose one of them")
    if what.coverage and what.mode != "fast":
        # The checks would report the kernel's writes to the counts in host memory.
        raise CompileError(f"expected coverage with the mode fast, got '{what.mode}'; choose fast")
    for profile in what.profiles:
        if profile.rpartition("=")[2] not in PROFILES:
            raise CompileError(
                f"expected a profile ({' | '.join(PROFILES)}) or GLOB=PROFILE, got '{profile}'; choose one of them"
            )
    compiled = [source for source in what.sources if source.suffix not in LINKED]
    if what.compile_only and (len(compiled) != 1 or len(what.sources) != 1):
        raise CompileError(
            f"expected one source to compile with -c, got {len(what.sources)} files; compile one at a time, then link"
        )
    if what.dependencies is not None and not what.compile_only:
        raise CompileError("expected -c with --dependencies, got none; make a program of objects to build it in parts")
    for source in what.sources:
        if not source.is_file():
            raise CompileError(f"expected a source file, got {source}, which does not exist; check the path")
    if not what.output.parent.is_dir():
        raise CompileError(f"expected -o in a folder that exists, got {what.output}; make the folder first")
    if what.output in what.sources:
        raise CompileError(f"expected -o to name another file than the sources, got {what.output}; name the output")
