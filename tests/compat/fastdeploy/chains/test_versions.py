"""FastDeploy's runners of four days, which together call every op of the model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from specdec_hal.compat.fastdeploy import gpu, use_backend, xpu
from tests.compat.fastdeploy.chains.run import PLATFORMS, run
from tests.compat.fastdeploy.chains.scenes import VERSIONS, methods, scene

OPS = {"gpu": gpu, "xpu": xpu}


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    use_backend("xpu_sim")
    yield
    use_backend()


@pytest.mark.parametrize("platform", OPS)
def test_versions(platform: str, queue: int) -> None:
    called: set[str] = set()
    number = count()
    for version in VERSIONS:
        for method in methods(platform, version):
            twice = version == VERSIONS[-1] or method in ("mtp", "ngram")
            for first in (True, False)[: 1 + twice]:
                chosen = scene(1000 + next(number), platform, version, method)
                chosen.pad_to_max = first
                if method == "mtp" and first:  # n-grams go on after the draft model's token
                    chosen.drafts, chosen.model_steps = max(chosen.drafts, 2), 1
                if chosen.drafts:
                    chosen.strategy = next(number) % 3
                called |= run(chosen, platform, OPS[platform], queue if first else None).called
    assert called == PLATFORMS[platform][1].keys()
