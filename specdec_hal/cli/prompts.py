"""Where prompts come from: the command line, files, or stdin."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specdec_hal.errors import RequestError
from specdec_hal.text import one_line, short

MAX_BYTES = 64 << 20
"""Most bytes of a prompt, far more than any context holds."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue. `name` is unique within one command."""

    name: str
    text: str
    add_special_tokens: bool = True


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """``--prompt``, ``--prompt-file``, ``--add-special-tokens`` and ``--max-new-tokens``."""
    parser.add_argument(
        "--prompt",
        dest="prompts",
        metavar="TEXT",
        type=lambda text: ("text", text),
        action="append",
        help="text to continue; may be repeated; all prompts form one batch",
    )
    parser.add_argument(
        "--prompt-file",
        dest="prompts",
        metavar="FILE",
        type=lambda path: ("file", path),
        action="append",
        help="file with the text to continue, '-' for stdin; the line break at its end is not part of the prompt; "
        "may be repeated and mixed with --prompt",
    )
    parser.add_argument(
        "--prompts",
        dest="prompts",
        metavar="FILE",
        type=lambda path: ("lines", path),
        action="append",
        help="file with a prompt in each line: a text, or (.jsonl) an object whose `prompt`, `text`, `question` or "
        "first of its `turns` is one, as in HumanEval and MT-bench",
    )
    parser.add_argument(
        "--add-special-tokens",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="add the tokenizer's own special tokens, such as a BOS, to each prompt (default: yes)",
    )
    parser.add_argument("--max-new-tokens", metavar="N", help="same as --set sampling.max_new_tokens=N")


def read_prompts(args: argparse.Namespace) -> list[Prompt]:
    """The prompts in the order given; without any, stdin. RequestError for a file that cannot be read."""
    sources = args.prompts
    if not sources:
        if sys.stdin is not None and sys.stdin.isatty():
            raise RequestError("no prompt: give --prompt TEXT, --prompt-file FILE, or pipe a text in")
        sources = [("file", "-")]
    names: Counter[str] = Counter()
    prompts = []
    for kind, value in sources:
        for name, text in [("prompt", _checked(value))] if kind == "text" else _FILES[kind](value):
            names[name] += 1
            name = name if names[name] == 1 else f"{name} #{names[name]}"
            prompts.append(Prompt(name, text, args.add_special_tokens))
    return prompts


def _lines(path: str) -> list[tuple[str, str]]:
    """A prompt of each line that is not empty."""
    ((name, text),) = _read(path)
    found = list[tuple[str, str]]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found.append(_object(f"{name}:{number}", line) if path.endswith(".jsonl") else (f"{name}:{number}", line))
    if not found:
        raise RequestError(f"--prompts {path}: expected a prompt in each line, got an empty file")
    return found


def _object(where: str, line: str) -> tuple[str, str]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--prompts {where}: expected a JSON object, got {one_line(error)}") from error
    values = given if isinstance(given, dict) else {}
    turns = values.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    texts = (*map(values.get, ("prompt", "text", "question")), first)
    text = next((one for one in texts if isinstance(one, str)), None)
    if text is None:
        raise RequestError(f"--prompts {where}: expected text as prompt, text, question or turns, got {short(given)}")
    name = next((values[key] for key in ("task_id", "question_id", "id") if key in values), where)
    return str(name), text


def _checked(text: str) -> str:
    """A text of the command line; Python represents bytes that are not UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise RequestError(f"--prompt: expected UTF-8 text, got the byte 0x{byte:02X} in {short(text)}") from error
    return text


def _bytes(path: str) -> bytes:
    """At most MAX_BYTES + 1 of them, from a pipe too."""
    if path != "-":
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    if sys.stdin is None:
        raise OSError("stdin is closed")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _read(path: str) -> list[tuple[str, str]]:
    """The prompt that a file is."""
    name = "stdin" if path == "-" else path
    try:
        data = _bytes(path)
        if len(data) > MAX_BYTES:
            raise RequestError(f"--prompt-file {path}: expected at most {MAX_BYTES} bytes, got more; shorten it")
        # Drop the final line break: tokenizers join it with the following indentation, so alone it suggests the end.
        return [(name, data.decode("utf-8").removesuffix("\n").removesuffix("\r"))]
    except OSError as error:
        raise RequestError(f"--prompt-file {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--prompt-file {path}: expected UTF-8 text, got {error}") from error


_FILES = {"file": _read, "lines": _lines}
