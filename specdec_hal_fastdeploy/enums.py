"""FastDeploy's enumerations of speculative decoding, for programs on its ops where there is no FastDeploy."""

from __future__ import annotations

from enum import Enum, IntEnum


class VerifyStrategy(IntEnum):
    """FastDeploy's numbers of the verifier's strategies."""

    TOPP = 0
    GREEDY = 1
    TARGET_MATCH = 2

    @classmethod
    def from_string(cls, name: str) -> VerifyStrategy:
        """The member of that name in any case. TypeError for what is no string, ValueError for another name."""
        if not isinstance(name, str):
            raise TypeError(f"verify_strategy: expected a string, got {type(name).__name__}")
        if name.upper() not in cls.__members__:
            raise ValueError(f"verify_strategy: expected one of {', '.join(cls.__members__).lower()}, got {name!r}")
        return cls[name.upper()]


class SpecMethod(str, Enum):
    """FastDeploy's names of where drafts come from; "ngram_match" is another one for NGRAM."""

    NAIVE = "naive"
    MTP = "mtp"
    NGRAM = "ngram"
    SUFFIX = "suffix"

    @classmethod
    def _missing_(cls, value: object) -> SpecMethod | None:
        return cls.NGRAM if value == "ngram_match" else None

    @property
    def needs_proposer(self) -> bool:
        """Whether something drafts at all."""
        return self is not SpecMethod.NAIVE

    @property
    def needs_kv_cache(self) -> bool:
        """Whether what drafts is a model."""
        return self is SpecMethod.MTP
