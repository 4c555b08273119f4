"""Third-party plug-ins beside the built-in ones: what they may not do, and doing without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.errors import PluginError
from specdec_hal.plugin.backend import API_VERSION, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal.plugin.registry import Registry

ROOT = Path(__file__).parents[2]
PLUGIN = """
import os
import specdec_hal as sd
{code}

@sd.hookimpl
def specdec_backends():
    return sd.BackendSpec({name!r}, sd.API_VERSION, lambda: {probe}, lambda options: None)
"""


def command(
    tmp_path: Path, *args: str, code: str = "", name: str = "acme", probe: str = "sd.Probe(True)", **environ: str
) -> Any:
    """A command line where such a plug-in is installed."""
    info = tmp_path / "acme-1.2.dist-info"
    info.mkdir()
    (tmp_path / "acme_plugin.py").write_text(PLUGIN.format(code=code, name=name, probe=probe))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[specdec_hal]\nacme = acme_plugin\n")
    return subprocess.run(
        [sys.executable, "-m", "specdec_hal.cli", *args], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), **environ}, check=False,
    )  # fmt: skip


NAMED = "specdec-hal: importing plug-in 'acme' (acme 1.2: acme_plugin)\n"


def test_a_plug_in_is_named_before_it_is_imported(tmp_path: Path) -> None:
    done = command(tmp_path, "backends", code="os._exit(9)")
    assert (done.returncode, done.stdout, done.stderr) == (9, "", NAMED)


def test_a_server_of_several_processes_names_it_once(tmp_path: Path) -> None:
    """One that does not start, as its checkpoint has no weights: each process reads the configuration before."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(ROOT / "models/tiny-py-lm/config.json", folder)
    done = command(tmp_path, "serve", "--port", "0", "--model", str(folder))
    assert done.returncode == 2 and done.stderr.count(NAMED) == 1, done.stderr


def test_a_probe_that_would_end_the_process(tmp_path: Path) -> None:
    done = command(tmp_path, "backends", "--json", probe="exit(3)")
    assert done.returncode == 0, done.stderr
    assert "its probe raised SystemExit: 3" in done.stdout and '"reference"' in done.stdout


def test_a_built_in_name_cannot_be_claimed(tmp_path: Path) -> None:
    done = command(tmp_path, "explain", "reference", name="reference")
    assert done.returncode == 0, done.stderr
    assert (
        "plug-in 'acme' (acme 1.2: acme_plugin): the backend 'reference' is built in; choose another name"
        in done.stderr
    )


def test_without_third_party_plug_ins(tmp_path: Path) -> None:
    done = command(tmp_path, "backends", code="os._exit(9)", SPECDEC_HAL_PLUGINS="none")
    assert (done.returncode, done.stderr) == (0, "") and "acme" not in done.stdout


def test_other_values_of_the_variable_are_refused() -> None:
    registry = Registry(environ={"SPECDEC_HAL_PLUGINS": "some"})
    with pytest.raises(PluginError, match="SPECDEC_HAL_PLUGINS: expected 'none' or no value, got 'some'"):
        registry.plugins()


def test_a_capability_that_matches_nothing_is_the_plug_ins_fault(fakes: Any) -> None:
    from specdec_hal.backends.reference.backend import ReferenceBackend
    from specdec_hal.plugin.backend import Capability

    class Odd(ReferenceBackend):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities = {"ngram_match": Capability(limits={"rows": 3})}

    module = type(sys)("odd")

    @hookimpl
    def specdec_backends() -> BackendSpec:
        return BackendSpec("odd", API_VERSION, lambda: Probe(True), lambda options: Odd())

    module.specdec_backends = specdec_backends  # type: ignore[attr-defined]
    registry = Registry(builtins=(), entry_points=(), environ={})
    registry.register(module, "odd")
    with pytest.raises(PluginError, match="capability of ngram_match: no size 'rows'"):
        registry.get_backend("odd")
