"""Corpus, tokenizer and token streams of tiny-py-lm: everything that happens before the first training step."""

from __future__ import annotations

import builtins
import hashlib
import keyword
import random
import re
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0

# ---------------------------------------------------------------------------------------------------------- corpus

# Directories that hold no hand-written library or test code: third-party packages, character tables, the documentation
# as one string, parser torture inputs, build configuration of the machine that compiled Python.
EXCLUDED_DIRS = {"site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data", "encoded_modules", "data"}
EXCLUDED_PREFIXES = ("_sysconfigdata", "config-")
MIN_CHARACTERS = 64
MAX_LINE = 400  # one-line literals longer than this are data
MAX_NON_ASCII = 0.005  # share of bytes
MAX_DIGITS = 0.20  # share of characters that are digits or backslashes
MAX_ESCAPES = 0.12  # share of the text spent on \x.., \u...., 0x.. (about five characters each)
VALIDATION_PERCENT = 4  # of hash buckets; comes to about 3 % of the files

_ESCAPE = re.compile(r"\\[xuN0-9]|0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class SourceFile:
    """One corpus file: POSIX path relative to the corpus root, and its text."""

    path: str
    text: str


@dataclass
class Corpus:
    """Both splits, in path order, and what was left out (reason -> number of files)."""

    train: list[SourceFile]
    validation: list[SourceFile]
    sha256: str
    excluded: Counter[str] = field(default_factory=Counter)


def rejection(path: str, raw: bytes) -> str:
    """Why a file is not part of the corpus; the empty string if it is."""
    parts = path.split("/")
    if any(part in EXCLUDED_DIRS or part.startswith(EXCLUDED_PREFIXES) for part in parts):
        return "excluded directory or generated file"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if len(text) < MIN_CHARACTERS:
        return "nearly empty"
    if sum(byte > 127 for byte in raw) > MAX_NON_ASCII * len(raw):
        return "mostly non-ASCII data"
    if max(map(len, text.splitlines())) > MAX_LINE:
        return "very long line"
    if sum(c.isdigit() or c == "\\" for c in text) > MAX_DIGITS * len(text):
        return "table of numbers"
    if 5 * len(_ESCAPE.findall(text)) > MAX_ESCAPES * len(text):
        return "table of escapes"
    return ""


def read_corpus(root: Path, limit: int | None = None) -> Corpus:
    """Read every acceptable ``*.py`` below `root`; the split and the hash depend on paths and contents alone.

    `limit` keeps only about that many files, spread evenly over the sorted list (for the smoke run).
    """
    corpus = Corpus([], [], "")
    seen: set[bytes] = set()
    accepted: list[tuple[str, bytes]] = []
    for file in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        path, raw = file.relative_to(root).as_posix(), file.read_bytes()
        content = hashlib.sha256(raw).digest()
        reason = rejection(path, raw) or ("duplicate content" if content in seen else "")
        if reason:
            corpus.excluded[reason] += 1
            continue
        seen.add(content)
        accepted.append((path, raw))
    digest = hashlib.sha256()
    for path, raw in accepted[:: max(1, len(accepted) // limit)] if limit else accepted:
        digest.update(path.encode() + b"\0" + hashlib.sha256(raw).digest())
        bucket = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") % 100
        split = corpus.validation if bucket < VALIDATION_PERCENT else corpus.train
        split.append(SourceFile(path, raw.decode("utf-8")))
    if not corpus.train or not corpus.validation:
        raise SystemExit(
            f"{root}: {len(accepted)} usable *.py files give an empty split; point --corpus at a standard library"
        )
    corpus.sha256 = digest.hexdigest()
    return corpus


# ---------------------------------------------------------------------------------------------------- augmentation

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BINDING = re.compile(r"\b(?:def|class|as|for)\s+([A-Za-z_][A-Za-z0-9_]*)|([A-Za-z_][A-Za-z0-9_]*)\s*=(?!=)")
_BLOCK_START = re.compile(r"^(?=(?:    )?(?:async def|def|class) )", re.MULTILINE)
_BLOCK_NAME = re.compile(r"\s*(?:async def|def|class) ([A-Za-z_][A-Za-z0-9_]*)")
_FIXED_NAMES = set(keyword.kwlist) | set(keyword.softkwlist) | set(dir(builtins)) | {"self", "cls"}
MAX_FILES_OF_PRIVATE_NAME = 8  # a name used by more files than this is shared vocabulary and keeps its spelling
RENAME_SHARE = 0.5
DUPLICATE_SHARE = 0.08
MAX_DUPLICATE = 2500  # characters


def _style(name: str) -> str:
    """Names of one style may replace each other: same leading underscores, casing and number of words."""
    bare = name.lstrip("_")
    case = "upper" if bare.isupper() else "lower" if bare.islower() else "mixed"
    return f"{len(name) - len(bare)}{case}{min(bare.count('_'), 3)}"


@dataclass(frozen=True)
class NamePool:
    """Names that code binds and that occur in few files, and all of them again by style (the replacements)."""

    private: frozenset[str]
    by_style: dict[str, list[str]]


def name_pool(files: list[SourceFile]) -> NamePool:
    """Collect the renameable names of the training split."""
    occurs: Counter[str] = Counter()
    bound: set[str] = set()  # keeps words that only comments use from becoming names
    for file in files:
        occurs.update(set(_IDENTIFIER.findall(file.text)))
        bound.update(left or right for left, right in _BINDING.findall(file.text))
    private = {
        name
        for name in bound - _FIXED_NAMES
        if occurs[name] <= MAX_FILES_OF_PRIVATE_NAME and len(name) > 2 and name.strip("_")
    }
    by_style: dict[str, list[str]] = defaultdict(list)
    for name in sorted(private):
        by_style[_style(name)].append(name)
    return NamePool(frozenset(private), dict(by_style))


def _rename(text: str, share: float, pool: NamePool, rng: random.Random, always: str = "") -> str:
    mapping: dict[str, str] = {}

    def substitute(match: re.Match[str]) -> str:
        name = match.group()
        if name != always and name not in pool.private:
            return name
        if name not in mapping:
            chosen = name == always or rng.random() < share
            choices = pool.by_style.get(_style(name), [])
            mapping[name] = rng.choice(choices) if chosen and choices else name
        return mapping[name]

    return _IDENTIFIER.sub(substitute, text)


def augment(text: str, pool: NamePool, rng: random.Random) -> str:
    """A variant of one file that rewards reading the context over remembering the corpus.

    Half of the file's private names get other spellings (consistently), and some functions and classes are followed by
    an edited copy of themselves: renamed, sometimes with a line missing. The second is what edit-style prompts look
    like, where speculative decoding by n-gram lookup lives off the model's copying.
    """
    out: list[str] = []
    for block in _BLOCK_START.split(_rename(text, RENAME_SHARE, pool, rng)):
        out.append(block)
        heading = _BLOCK_NAME.match(block)
        if heading and len(block) <= MAX_DUPLICATE and rng.random() < DUPLICATE_SHARE:
            lines = _rename(block, 0.3, pool, rng, always=heading.group(1)).splitlines(keepends=True)
            if len(lines) > 4 and rng.random() < 0.5:
                del lines[rng.randrange(2, len(lines))]
            out.append("".join(lines))
    return "".join(out)


def _augment_all(job: tuple[list[SourceFile], NamePool, str]) -> list[SourceFile]:
    files, pool, seed = job
    return [SourceFile(f.path, augment(f.text, pool, random.Random(f"{seed}:{f.path}"))) for f in files]


def augmented_copies(files: list[SourceFile], copies: int, seed: int, workers: int) -> list[list[SourceFile]]:
    """`copies` augmented versions of the training split, computed in `workers` processes (same result for any)."""
    if copies == 0:
        return []
    pool = name_pool(files)
    with ProcessPoolExecutor(workers) as executor:
        return list(executor.map(_augment_all, [(files, pool, f"{seed}:{copy}") for copy in range(copies)]))


# ------------------------------------------------------------------------------------------------------- tokenizer

# Pre-tokens. A line break takes the blank lines before it and the indentation after it along, so the step to the next
# statement is one token; the price is that a prompt should end with the next line's indentation, not right after "\n".
# Names split at underscores, digits go in threes, punctuation runs such as `("` or `__` stay together.
PRE_TOKEN = r"\s*\n[ \t]*| ?_?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"


def train_tokenizer(files: list[SourceFile]) -> Tokenizer:
    """Byte-level BPE of VOCAB_SIZE tokens; decode(encode(x)) == x for any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator((f.text for f in files), trainer, length=len(files))
    if tokenizer.get_vocab_size() != VOCAB_SIZE or tokenizer.token_to_id(END_OF_TEXT) != END_OF_TEXT_ID:
        raise SystemExit(f"tokenizer: expected {VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()}: corpus too small")
    return tokenizer


def check_round_trip(tokenizer: Tokenizer, files: list[SourceFile]) -> None:
    """Stop unless decode(encode(x)) == x for every file."""
    for file in files:
        if tokenizer.decode(tokenizer.encode(file.text).ids, skip_special_tokens=False) != file.text:
            raise SystemExit(f"tokenizer: {file.path} does not survive encode and decode")


def encode(tokenizer: Tokenizer, files: list[SourceFile], order_seed: int | None = None) -> np.ndarray:
    """All files as one uint16 [T] stream, each followed by END_OF_TEXT_ID; shuffled by file if a seed is given."""
    files = list(files)
    if order_seed is not None:
        random.Random(order_seed).shuffle(files)
    parts: list[np.ndarray] = []
    for first in range(0, len(files), 256):  # in batches: Encoding objects are large
        for encoding in tokenizer.encode_batch_fast([f.text for f in files[first : first + 256]]):
            parts.append(np.array([*encoding.ids, END_OF_TEXT_ID], dtype=np.uint16))
    return np.concatenate(parts)
