"""Random checkpoints of any size, and every implementation of the model on them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specdec_hal.models import host, load_model
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.weights import expected_shapes
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

# Triton's functions are made when it is imported: compiled ones where there is a GPU, interpreted ones elsewhere.
_GPU = Path("/dev/nvidiactl").exists()
if not _GPU:
    os.environ["TRITON_INTERPRET"] = "1"
    import tests.support.interpreted  # noqa: F401

Weights = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def few_sizes() -> Iterator[None]:
    """Steps of other sizes are padded: less is measured at loading."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "SIZES", (*range(1, 9), 16, 32))
        patch.setattr(host, "HEAD_SIZES", (1, 2, 4, 8))
        yield


@dataclass(frozen=True)
class Shape:
    """config.json of a small model, key for key."""

    vocab_size: int = 131
    hidden_size: int = 48
    intermediate_size: int = 72
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    max_position_embeddings: int = 512
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    num_nextn_predict_layers: int = 1
    bos_token_id: int = 1
    eos_token_id: int = 2
    model_type: str = "llama"
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)


SHAPES = {
    "grouped": Shape(),
    "one-kv-head": Shape(
        num_attention_heads=3, num_key_value_heads=1, head_dim=10, hidden_size=33, intermediate_size=41
    ),
    "ungrouped": Shape(num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False, rope_theta=500.0),
    # The sizes of the embedded model, whose kernels differ from those of the others; fewer layers and tokens.
    "embedded": Shape(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        head_dim=64,
        num_hidden_layers=2,
        num_nextn_predict_layers=0,
    ),
}


def random_weights(folder: Path, seed: int = 0) -> Weights:
    """Weights for the config.json in `folder`, float16, of the size that keeps activations near 1."""
    generator = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_shapes(read_config(folder)).items():
        values = generator.standard_normal(shape)
        if len(shape) == 1:
            values = 1 + 0.1 * values
        elif "embed" not in name:
            values /= np.sqrt(shape[-1])
        weights[name] = values.astype(np.float16)
    return weights


def write_checkpoint(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """config.json and model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(asdict(shape)))
    save_file(random_weights(folder, seed), folder / "model.safetensors")
    return folder


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """make_checkpoint(vocab_size=..., ...): a folder with a checkpoint of that shape."""

    def make(**changes: Any) -> Path:
        return write_checkpoint(tmp_path / "checkpoint", replace(Shape(), **changes))

    return make


@pytest.fixture(scope="session", params=list(SHAPES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each shape."""
    return write_checkpoint(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


@pytest.fixture(scope="session")
def embedded_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("embedded-only"), SHAPES["embedded"])


@pytest.fixture(scope="session", params=["paddle", pytest.param("transformers", marks=pytest.mark.torch)])
def framework(request: pytest.FixtureRequest) -> str:
    """Each framework; a test that needs an absent one is skipped, and says so."""
    name: str = request.param
    pytest.importorskip(name, reason=f"{name} is not installed (pip install 'specdec-hal[{name}]')")
    return name


class Driver:
    """A model with a cache, driven by lists of token ids."""

    def __init__(self, path: Path, framework: str, slots: int = 3, length: int = 400, **options: Any) -> None:
        self.path, self.framework = path, framework
        self.model: Any = load_model(path, framework, **options)
        self.model.allocate(slots, length)

    def step(self, *parts: tuple[int, int, npt.ArrayLike]) -> list[npt.NDArray[np.float32]]:
        """Logits [n, V] of each (slot, position, token ids), all in one batch."""
        segments, ids = [], []
        for slot, position, tokens in parts:
            segments.append(Segment(slot, len(ids), len(np.asarray(tokens)), position))
            ids.extend(np.asarray(tokens).tolist())
        hidden = self.model.forward(ForwardBatch(np.array(ids, np.int64), segments))[FINAL_NORM]
        assert tuple(hidden.shape) == (len(ids), self.model.config.hidden_size)
        logits = np.array(self.model.compute_logits(hidden).cpu().numpy())
        assert logits.shape == (len(ids), self.model.config.vocab_size) and logits.dtype == np.float32
        return [logits[s.start : s.start + s.length] for s in segments]

    def whole(self, tokens: npt.ArrayLike, chunk: int = 10**9, slot: int = 0) -> npt.NDArray[np.float32]:
        """Logits of a text from its beginning, in chunks."""
        ids = np.asarray(tokens)
        return np.concatenate([self.step((slot, p, ids[p : p + chunk]))[0] for p in range(0, len(ids), chunk)])

    def tokens(self, count: int, seed: int = 0) -> npt.NDArray[np.int64]:
        """Random token ids."""
        return np.random.default_rng(seed).integers(0, self.model.config.vocab_size, count)


@pytest.fixture(scope="session")
def make_driver() -> type[Driver]:
    """make_driver(checkpoint, framework, **options)."""
    return Driver


@pytest.fixture(scope="session")
def drivers() -> Callable[[Path, str], Driver]:
    """drivers(checkpoint, framework): a Driver, loaded once."""
    cache: dict[tuple[Path, str], Driver] = {}

    def get(path: Path, framework: str) -> Driver:
        if (path, framework) not in cache:
            cache[path, framework] = Driver(path, framework)
        return cache[path, framework]

    return get


@pytest.fixture(scope="session")
def driver(checkpoint: Path, framework: str, drivers: Callable[[Path, str], Driver]) -> Driver:
    """Each framework on each shape. The cache holds what other tests left there, as a served one would."""
    return drivers(checkpoint, framework)


@pytest.fixture(scope="session")
def embedded_driver(embedded_checkpoint: Path, framework: str, drivers: Callable[[Path, str], Driver]) -> Driver:
    """Each framework on the embedded model's sizes."""
    return drivers(embedded_checkpoint, framework)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """Where Triton's kernels run: interpreted on a CPU, or compiled on a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    if request.param == "cpu" and _GPU:
        pytest.skip("Triton's interpreter is for machines without a GPU; the case runs on the GPU here")
    if request.param != "cpu" and not _GPU:
        pytest.skip("no NVIDIA GPU here")
    place: str = request.param
    return place
