"""Calls of kernels and wrappers on the emulator, with NumPy arrays in and out.

A :class:`CallProgram` is made from the sources and a list of functions by a few generated lines
(``xpu_sim/calls.h``). Each run is a separate process, so that every build mode works and a crash is contained.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import CompileError, KernelError
from specdec_hal_xpu.cc import KERNEL_SUFFIXES, Build, build
from specdec_hal_xpu.launches import split_at_commas, without_literals

Array = NDArray[Any]

TIMEOUT_S = 600
_KERNEL = re.compile(r"(?:\b__global__|__attribute__\s*\(\s*\(\s*global\s*\)\s*\))[\s\w]*?\bvoid\s+(\w+)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Host:
    """An array in host memory, inaccessible to kernels."""

    array: Array


@dataclass(frozen=True)
class Parameter:
    """A parameter, as compiled: `kind` is value, pointer or vector; `type` and `element` are the element's."""

    kind: str
    type: str
    element: int
    name: str

    def data(self, value: Any, function: str) -> tuple[str, bytes]:
        """An argument encoded for the program: its kind and bytes.

        Raises:
            CompileError: the argument does not match the declaration.
        """
        if self.kind == "pointer":
            if value is None:
                return "n", b""
            array = value.array if isinstance(value, Host) else value
            self._check_array(array, function)
            return ("h" if isinstance(value, Host) else "g"), array.tobytes()
        if self.kind == "vector":
            self._check_array(value, function)
            return "v", value.tobytes()
        if self.type == "bytes":
            raw = bytes(value)
            if len(raw) != self.element:
                raise self._error(function, f"{self.element} bytes", f"{len(raw)}")
            return "v", raw
        if self.type == "bfloat16":
            return "v", _bfloat16(float(value))
        try:
            scalar = np.array(value, dtype=self.type)
        except (TypeError, ValueError, OverflowError):
            raise self._error(function, f"a {self.type}", repr(value)) from None
        if scalar.shape != () or (scalar.dtype.kind in "iub" and int(scalar) != value):
            raise self._error(function, f"a {self.type}", repr(value))
        return "v", scalar.tobytes()

    def _check_array(self, array: Any, function: str) -> None:
        if not isinstance(array, np.ndarray):
            raise self._error(function, "a NumPy array" + (" or None" if self.kind == "pointer" else ""), repr(array))
        # Types that NumPy lacks are passed in one of the same size (bfloat16 as uint16); `void*` takes any.
        named = self.type not in ("bfloat16", "bytes", "void")
        if array.dtype != np.dtype(self.type) if named else self.type != "void" and array.itemsize != self.element:
            raise self._error(function, f"an array of {self.type}", f"one of {array.dtype}")
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise self._error(function, "an array that is contiguous and may be written", "another")

    def _error(self, function: str, expected: str, got: str) -> CompileError:
        return CompileError(f"{function}: argument '{self.name}': expected {expected}, got {got}; pass it as declared")


def _bfloat16(value: float) -> bytes:
    bits = int(np.float32(value).view(np.uint32))
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


@dataclass(frozen=True)
class Call:
    """A call of a function of the program. `clusters` and `cores` are for kernels, `cpu` for wrappers."""

    function: str
    arguments: Sequence[Any]
    clusters: int = 1
    cores: int = 1
    cpu: bool = False


@dataclass(frozen=True)
class Ran:
    """Results of a run: exit status, status per call, findings, counters, and output.

    `statuses` is shorter than the calls when the process ended early.
    """

    status: int
    statuses: list[int]
    findings: list[dict[str, Any]]
    unused_suppressions: list[str]  # entries of XPU_SIM_SUPPRESSIONS that held nothing in this run
    kernels: list[dict[str, Any]]  # counters of all launches of a kernel
    launches: list[dict[str, Any]]  # per launch, in the order of completion
    err: str

    @property
    def checks(self) -> set[str]:
        """The names of the checks that found something."""
        return {finding["check"] for finding in self.findings}


@dataclass(frozen=True)
class CallProgram:
    """A program that calls `functions` of `mains` with arguments from a file.

    `mains` define or declare the functions; `functions` are C++ names: ``axpy``, ``plugin::scale<float>``.
    """

    path: Path
    mains: tuple[Path, ...]
    functions: tuple[str, ...]

    @classmethod
    def build(
        cls, what: Build, mains: Sequence[Path], functions: Sequence[str], messages: list[str] | None = None
    ) -> CallProgram:
        """Compile `what` with a generated main program that includes the text of `mains`.

        `messages`: where the compiler's warnings go, instead of standard error.

        Raises:
            CompileError: compilation failed; see the compiler's messages.
        """
        kernels = all(main.suffix in KERNEL_SUFFIXES for main in mains)
        suffix, header = (KERNEL_SUFFIXES[0], "calls.h") if kernels else (".cpp", "wrapper_calls.h")
        entries = "".join(f'      xpu_sim::calls::entry("{name}", &{name}),\n' for name in functions)
        with tempfile.TemporaryDirectory(prefix="xpu-calls-") as folder:
            generated = Path(folder) / f"calls{suffix}"
            parts = [f'#line 1 "{main.resolve()}"\n{_read(main)}\n' for main in mains]
            generated.write_text(
                "".join(parts)
                + f'#line 1 "calls of {mains[0].name}"\n#include "xpu_sim/{header}"\n'
                + f"int main(int argc, char** argv) {{\n  const xpu_sim::calls::Entry entries[] = {{\n{entries}  }};\n"
                + f"  return xpu_sim::calls::run(entries, {len(functions)}, argc, argv);\n}}\n",
                encoding="utf-8",
                errors="surrogateescape",
            )
            quoted = [part for main in mains for part in ("-iquote", str(main.resolve().parent))]
            sources = (generated, *what.sources)
            status, _ = build(replace(what, sources=sources, flags=(*quoted, *what.flags)), messages)
        if status != 0:
            raise CompileError(
                f"expected {mains[0].name} with {', '.join(functions[:4])} to compile; see the compiler's messages"
            )
        return cls(what.output, tuple(mains), tuple(functions))

    @cached_property
    def signatures(self) -> dict[str, list[Parameter]]:
        """The parameters of each function, without a wrapper's context."""
        # Nothing runs, so the environment's options for runs do not apply.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("XPU_SIM")}
        done = subprocess.run(
            [str(self.path), "--signatures"], env=variables, capture_output=True, text=True, check=True
        )
        named = parameter_names(self.mains)
        found = {}
        for one in json.loads(done.stdout):
            plain = re.sub(r"<.*>", "", one["name"]).rpartition("::")[2]
            names = named.get(plain, [])
            kinds = one["parameters"]
            names = names[-len(kinds) :] if len(names) >= len(kinds) else [f"#{i + 1}" for i in range(len(kinds))]
            found[one["name"]] = [Parameter(name=name, **kind) for name, kind in zip(names, kinds, strict=True)]
        return found

    def run(self, calls: Sequence[Call], *, options: str = "", environment: dict[str, str] | None = None) -> Ran:
        """Run the calls in one process, and copy the results into their arrays.

        `options` is as in the variable XPU_SIM: ``seed=7,dma=random``.

        Raises:
            CompileError: an argument does not match the declaration; nothing ran.
            KernelError: the program did not start or did not end within 10 minutes.
        """
        request = b"".join(map(self._request, calls))
        with tempfile.TemporaryDirectory(prefix="xpu-calls-") as name:
            folder = Path(name)
            (folder / "request").write_bytes(request)
            variables = {
                "XPU_SIM": options,
                "XPU_SIM_PART": "1",  # other runs may need this suppression
                "XPU_SIM_JSON": str(folder / "report"),
                **(environment or {}),
            }
            command = [str(self.path), str(folder / "request"), str(folder / "response")]
            try:
                done = subprocess.run(
                    command, env={**os.environ, **variables}, capture_output=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise KernelError(f"{self.mains[0].name}: expected to end within {TIMEOUT_S} s; see XPU_SIM") from None
            err = done.stderr.decode("utf-8", "replace")
            if not (folder / "response").exists():
                raise KernelError(f"{self.mains[0].name}: expected to run with XPU_SIM={options}, got: {err.strip()}")
            response = (folder / "response").read_bytes()
            report = folder / "report"
            document = json.loads(report.read_text()) if report.exists() else _NO_REPORT
        return Ran(done.returncode, self._take(calls, response), **document, err=err)

    def _request(self, call: Call) -> bytes:
        parameters = self.signatures[call.function]
        if len(call.arguments) != len(parameters):
            names = ", ".join(parameter.name for parameter in parameters)
            raise CompileError(
                f"{call.function}: expected {len(parameters)} arguments ({names}), got {len(call.arguments)}; "
                "pass each of them"
            )
        _check_overlap(call)
        path = "cpu" if call.cpu else "xpu"
        number = self.functions.index(call.function)
        parts = [f"{number} {call.clusters} {call.cores} {path} {len(parameters)}\n".encode()]
        for parameter, value in zip(parameters, call.arguments, strict=True):
            given, data = parameter.data(value, call.function)
            parts.append(f"{given} {len(data)} {parameter.name}\n".encode() + data)
        return b"".join(parts)

    def _take(self, calls: Sequence[Call], response: bytes) -> list[int]:
        """The calls' statuses; copies results into their arrays."""
        statuses: list[int] = []
        at = 0
        for call in calls:
            if at == len(response):
                break
            statuses.append(int.from_bytes(response[at : at + 4], "little", signed=True))
            at += 4
            for parameter, value in zip(self.signatures[call.function], call.arguments, strict=True):
                array = value.array if isinstance(value, Host) else value
                if not isinstance(array, np.ndarray) or parameter.kind == "value":
                    at += len(parameter.data(value, call.function)[1])
                    continue
                array[...] = np.frombuffer(response, array.dtype, array.size, at).reshape(array.shape)
                at += array.nbytes
        return statuses


_NO_REPORT: dict[str, Any] = {"findings": [], "unused_suppressions": [], "kernels": [], "launches": []}


def _check_overlap(call: Call) -> None:
    """Refuse overlapping arrays, which would be separate in the call."""
    arrays = [value for value in call.arguments if isinstance(value, np.ndarray)]
    for i, one in enumerate(arrays):
        if any(np.may_share_memory(one, other) for other in arrays[:i]):
            raise CompileError(
                f"{call.function}: expected arrays that do not overlap, got two that do; copy one of them"
            )


def parameter_names(sources: Sequence[Path]) -> dict[str, list[str]]:
    """Parameter names by function, as far as found in the texts."""
    found: dict[str, list[str]] = {}
    for name, names in definitions(sources):
        found.setdefault(name, names)
    return found


def definitions(sources: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """Name and parameter names of each function definition, as far as found in the texts."""
    for source in sources:
        text = re.sub(r"/\*\s*(\w+)\s*\*/", r"\1", _read(source))  # f(int /*n*/)
        for name, parameters in re.findall(r"\b(\w+)\s*\(([^(){};]*)\)\s*\{", without_literals(text)):
            words = [re.findall(r"\w+", part.partition("=")[0]) for part in split_at_commas(parameters)]
            names = [word[-1] if len(word) > 1 else f"#{i + 1}" for i, word in enumerate(words)]
            yield name, names


def kernels_in(source: Path) -> list[str]:
    """Names of kernels that a file defines outside templates and namespaces, as far as found in its text."""
    text = without_literals(_read(source))
    return [match[1] for match in _KERNEL.finditer(text) if text[match.end() :].lstrip().startswith("{")]


def _read(source: Path) -> str:
    return source.read_text(encoding="utf-8", errors="surrogateescape")
