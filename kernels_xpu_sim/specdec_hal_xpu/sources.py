"""The compiler's input for a source: itself, or copies of it and its headers with rewritten launches and vector
casts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specdec_hal_xpu.launches import rewrite_launches, rewrite_vector_casts

_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)(["<])([^">\n]+)[">]', re.MULTILINE)


@dataclass
class _File:
    path: Path  # its first name
    text: str
    changed: bool
    launches: bool
    headers: set[Path] = field(default_factory=set)  # included user headers
    copy: Path | None = None


class Sources:
    """The sources of one build. Copies go into `folder`; `includes`: search path of the user's headers."""

    def __init__(self, folder: Path, includes: Sequence[str]) -> None:
        self._folder = folder
        self._includes = [Path(one) for one in includes]
        self._files: dict[Path, _File] = {}  # by their resolved paths

    def readable(self, source: Path) -> Path:
        """The source, or a copy with the same line numbers if it or one of its headers has launches.

        Raises:
            CompileError: a launch is incomplete.
        """
        self._read(source)
        # Files that include a copy are copied too, even in include cycles.
        copied = {path for path, file in self._files.items() if file.changed}
        while more := {path for path, file in self._files.items() if file.headers & copied} - copied:
            copied |= more
        for number, (path, file) in enumerate(self._files.items()):
            if path in copied:
                file.copy = self._folder / f"{number}-{path.name}"
        for path in copied:
            self._write(self._files[path])
        return self._files[source.resolve()].copy or source

    def remarks(self, source: Path, look: Callable[[str, str], list[str]]) -> list[str]:
        """Results of `look` for the texts of a source and its user headers."""
        waiting = [source.resolve()]
        seen: dict[Path, list[str]] = {}
        while waiting:
            file = self._files[path := waiting.pop()]
            if path not in seen:
                seen[path] = look(file.text, str(file.path))
                waiting += file.headers
        return [remark for remarks in seen.values() for remark in remarks]

    def original_names(self, text: str) -> str:
        """`text` with the names of copies replaced by those of their originals."""
        for file in self._files.values():
            if file.copy is not None:
                text = text.replace(str(file.copy), str(file.path))
        return text

    def _read(self, path: Path) -> None:
        if path.resolve() in self._files:
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        called = rewrite_launches(text, str(path)) if "<<<" in text else text
        rewritten = rewrite_vector_casts(called) if "reinterpret_cast" in text else called
        file = self._files[path.resolve()] = _File(path, rewritten, rewritten != text, launches=called != text)
        for match in _INCLUDE.finditer(rewritten):
            if (header := self._find(match, path)) is not None:
                file.headers.add(header.resolve())
                self._read(header)

    def _find(self, include: re.Match[str], source: Path) -> Path | None:
        beside = [source.parent] if include[2] == '"' else []
        candidates = (folder / include[3] for folder in [*beside, *self._includes])
        return next((candidate for candidate in candidates if candidate.is_file()), None)

    def _write(self, file: _File) -> None:
        """Adapt includes of a copy, which is in another folder: full paths of copies and of files beside the
        original."""

        def named(include: re.Match[str]) -> str:
            header = self._find(include, file.path)
            if header is None:
                return include[0]
            copy = self._files[header.resolve()].copy
            beside = include[2] == '"' and header == file.path.parent / include[3]
            return f'{include[1]}"{copy or header.absolute()}"' if copy or beside else include[0]

        assert file.copy is not None
        name = str(file.path).replace("\\", "\\\\").replace('"', '\\"')
        chevron = '#include "xpu_sim/chevron.h"\n' if file.launches else ""
        text = f'{chevron}#line 1 "{name}"\n' + _INCLUDE.sub(named, file.text)
        file.copy.write_text(text, encoding="utf-8", errors="surrogateescape")
