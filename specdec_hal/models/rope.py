"""Frequencies of rotary embeddings, with the scalings of Llama-style checkpoints.

Frequency j of a head is theta^(-2j/head_dim) (Su et al., arXiv:2104.09864). Scalings stretch it to longer contexts:

- linear: divided by `factor` (Chen et al., arXiv:2306.15595);
- dynamic: unscaled up to `max_position_embeddings`; unsupported beyond, where all frequencies change with the length of
the text;
- llama3: long wavelengths divided by `factor`, short ones kept, a ramp between (Llama 3.1);
- yarn: a ramp over dimensions, and an attention factor on cosine and sine (Peng et al., arXiv:2309.00071).

Computed in float64. `transformers` computes the same in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from specdec_hal.models.batch import refused

Doubles = npt.NDArray[np.float64]

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RopeScaling:
    """``rope_scaling`` or ``rope_parameters`` of config.json; unused fields are 1."""

    rope_type: str
    factor: float = 1.0
    original_max_position_embeddings: int = 1
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None) -> Doubles:
    """Angle per position of each pair of dimensions: float64 [head_dim / 2]."""
    half = head_dim // 2
    unscaled: Doubles = theta ** (-np.arange(half) / half)
    if scaling is None:
        return unscaled
    if scaling.rope_type == "linear":
        return unscaled / scaling.factor
    if scaling.rope_type == "llama3":
        return _llama3(unscaled, scaling)
    if scaling.rope_type == "yarn":
        return _yarn(unscaled, theta, head_dim, scaling)
    return unscaled


class Rotated(Protocol):
    """The parameters of rotary embeddings in a model's configuration."""

    @property
    def rope_theta(self) -> float:
        """The base of the frequencies."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """How the frequencies are scaled."""

    @property
    def max_position_embeddings(self) -> int:
        """The longest context that the model was trained for."""


def rotations(config: Rotated, positions: int) -> npt.NDArray[np.complex128]:
    """Rotations of positions 0, 1, ..., complex [positions, head_dim / 2].

    ArgumentError for more positions than scaling of type dynamic is supported for.
    """
    scaling, limit = config.rope_scaling, config.max_position_embeddings
    if scaling is not None and scaling.rope_type == "dynamic" and positions > limit:
        expected = f"at most max_position_embeddings ({limit}) with rope_type dynamic"
        hint = "use a shorter context: beyond it the rotary embeddings of all positions would change"
        raise refused("models", "allocate", "max_model_len", expected, positions, hint)
    angle = np.arange(positions)[:, None] * frequencies(config.rope_theta, config.head_dim, scaling)
    factor = 1.0 if scaling is None else scaling.attention_factor
    turned: npt.NDArray[np.complex128] = factor * (np.cos(angle) + 1j * np.sin(angle))
    return turned


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """The default factor on cosine and sine."""

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)


def _llama3(unscaled: Doubles, scaling: RopeScaling) -> Doubles:
    turns = scaling.original_max_position_embeddings * unscaled / (2 * math.pi)  # in the original context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(ramp, 0.0, 1.0)
    return (1 - kept) * unscaled / scaling.factor + kept * unscaled


def _yarn(unscaled: Doubles, theta: float, head_dim: int, scaling: RopeScaling) -> Doubles:
    def dimension(turns: float) -> float:
        """The pair with this many rotations within the original context."""
        wavelength = scaling.original_max_position_embeddings / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    divided = np.clip((np.arange(len(unscaled)) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    stretched: Doubles = divided * unscaled / scaling.factor + (1 - divided) * unscaled
    return stretched


Norms: TypeAlias = tuple[Any, Any, float]
"""Weights of RMSNorms of queries and keys, and their epsilon."""


@dataclass(frozen=True)
class Rotation:
    """Pending rotary embeddings: of tensors [T, heads, width], by angles [1, T, dims] or half as wide, after norms.

    `dims`: the first ones of a head, which are rotated; 0: all. `positions` int64 [T]: each row takes its own of the
    angles of all positions. None: angles are those of the rows.
    """

    q: Any
    k: Any
    cos: Any
    sin: Any
    norms: Norms | None
    positions: Any = None
    dims: int = 0
