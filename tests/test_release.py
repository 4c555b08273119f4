"""tools/release.py and tools/version.py: versions from tags, what is refused, and the list of parts in a wheel."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import ROOT, script


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, whose changelog is cut for 1.2.3."""
    monkeypatch.delenv("SPECDEC_HAL_BUILD_VERSION", raising=False)
    root = tmp_path / "tree"
    (root / "changelog.d").mkdir(parents=True)
    (root / "changelog.d" / "README.md").touch()
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-28)\n")
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "a")
    return root


def test_versions_come_from_tags(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = script("tools/version.py").version
    assert version(tree) == "0.2.0.dev1"
    git(tree, "tag", "other")
    git(tree, "tag", "v1.2.3")
    assert version(tree) == "1.2.3"
    (tree / "CHANGELOG.md").write_text("changed")
    assert version(tree) == "1.2.4.dev0"
    git(tree, "commit", "--quiet", "-am", "b")
    assert version(tree) == "1.2.4.dev1"
    git(tree, "tag", "v1.3.0rc1")
    with pytest.raises(ValueError, match=r"expected a tag vX\.Y\.Z, got 'v1\.3\.0rc1-0-g"):
        version(tree)
    monkeypatch.setenv("SPECDEC_HAL_BUILD_VERSION", "4.5.6")
    assert version(tree) == "4.5.6"


def test_versions_without_history(tree: Path) -> None:
    version = script("tools/version.py").version
    inside = tree / "unpacked"  # in the repository of another project
    inside.mkdir()
    assert version(inside) == "0.2.0.dev0"
    (inside / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: specdec-hal\nVersion: 7.8.9\n\nText\n")
    assert version(inside) == "7.8.9"


def test_the_provider_pins_distributions_beside_it() -> None:
    tool = script("tools/version.py")
    now = tool.version()
    assert tool.dynamic_metadata({}, {}) == {"version": now}
    pinned = tool.dynamic_metadata({"pinned": ["specdec-hal"]}, {})
    assert pinned == {"version": now, "dependencies": [f"specdec-hal=={now}"]}


def test_the_readme_on_an_index_has_no_relative_links() -> None:
    tool = script("tools/readme.py")
    text = "![p](a.svg) [`b.md`](b.md#c) [x](../d) [y](https://example.org)\n```\nlogits[[7]](x)\n```\n"
    kept = "[y](https://example.org)\n```\nlogits[[7]](x)\n```\n"
    assert tool.described(text, "f") == f" `b.md` (`f/b.md`) x (`d`) {kept}"
    for path in ("README.md", "kernels_cuda/README.md"):
        shown = tool.dynamic_metadata({"path": path}, {})["readme"]["text"]
        assert "`kernels_c" in shown and not re.findall(r"\]\((?!https?:|#)", shown)


def test_what_is_not_released(tree: Path) -> None:
    refusal = script("tools/release.py").refusal
    assert refusal(tree, "1.2.3") is None
    assert refusal(tree, "1.2.4.dev1").startswith("expected a tag vX.Y.Z on HEAD, got version 1.2.4.dev1; git tag")
    assert "a section 1.3.0 and changelog.d no fragments, got 0 fragments" in refusal(tree, "1.3.0")
    (tree / "changelog.d" / "1.fix.md").write_text("A fix.\n")
    assert refusal(tree, "1.2.3").startswith("expected a tree without changes, got\n?? changelog.d/1.fix.md\n")
    git(tree, "add", "-A")
    git(tree, "commit", "--quiet", "-m", "b")
    assert "got 1 fragments; before the tag: make changelog VERSION=1.2.3" in refusal(tree, "1.2.3")


@pytest.mark.parametrize("options", [["--archs", "90"], ["--without", "cuda"]])
def test_a_release_has_everything(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = script("tools/release.py").arguments
    with pytest.raises(SystemExit):
        arguments(options)
    assert "expected --dev beside them; a release has everything" in capsys.readouterr().err
    assert arguments(["--dev", *options]).dev


def test_what_is_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without nvcc and without the cross compiler."""
    tool = script("tools/release.py")
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    release = tool.Release(tool.arguments(["--out", str(tmp_path), "--work", str(tmp_path)]), "1.2.3")
    release.cuda("x86_64")
    release.cross("x86_64")
    assert release.left_out == [
        "specdec-hal-cuda, x86_64: nvcc is not on PATH; install the CUDA toolkit (13.0)",
        "specdec-hal-cuda, aarch64: needs a CUDA toolkit for SBSA; run this on such a machine",
        "specdec-hal, aarch64: aarch64-linux-gnu-g++ is not on PATH; apt-get install g++-aarch64-linux-gnu",
    ]


def bill(name: str, *required: str) -> dict[str, Any]:
    lines = [f"Name: {name}", "Version: 1.2.3", "License-Expression: Apache-2.0"]
    lines += [f"Requires-Dist: {one}" for one in required]
    made: dict[str, Any] = script("tools/release.py").bill_of_parts("\n".join(lines), "13.0.88")
    return made


def test_the_list_of_parts() -> None:
    main = bill("specdec-hal", "numpy>=1.24", 'torch>=2.6; extra == "torch"')
    names = [part["name"] for part in main["components"]]
    assert names == ["Apache TVM FFI (headers)", "DLPack (headers)", "libstdc++ (headers)", "numpy>=1.24"]
    assert main["metadata"]["component"]["version"] == "1.2.3"
    cuda = bill("specdec-hal-cuda", "specdec-hal==1.2.3")
    (runtime,) = (part for part in cuda["components"] if "cudart" in part["name"])
    assert runtime["version"] == "13.0.88"
    assert main["serialNumber"] != cuda["serialNumber"]
    known = (ROOT / "THIRD_PARTY_LICENSES.txt").read_text()
    assert all(part["name"].partition(" (")[0] in known for part in main["components"][:3])
