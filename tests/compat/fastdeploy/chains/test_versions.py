"""What FastDeploy's runners of four days pass is known by the arguments, and all of them together call every op."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from specdec_hal.compat.fastdeploy import gpu, use_backend, xpu
from tests.compat.fastdeploy.chains.run import PLATFORMS, run
from tests.compat.fastdeploy.chains.scenes import VERSIONS, methods, scene

OPS = {"gpu": gpu, "xpu": xpu}
FIRST, SECOND, THIRD, LAST = VERSIONS
TENSOR_NUM = {"get_padding_offset": {"i64 T - - i64"}}
FORMS = {
    ("gpu", FIRST): {"get_padding_offset": {"i64 T - T T int"}, "hybird_mtp_ngram": {12}},
    ("gpu", SECOND): {"get_padding_offset": {"i64 T T T - int"}, "hybird_mtp_ngram": {12}},
    ("gpu", THIRD): {"get_padding_offset": {"i64 T T T - int"}, "hybrid_mtp_ngram": {13}, "ngram_match": {11, 12}},
    ("gpu", LAST): {"get_padding_offset": {"i64 T T T - int"}, "hybrid_mtp_ngram": {13}, "ngram_match": {12}},
    ("xpu", FIRST): {"unified_update_model_status": {18}, **TENSOR_NUM},
    ("xpu", SECOND): {"unified_update_model_status": {18}, **TENSOR_NUM},
    ("xpu", THIRD): {"unified_update_model_status": {18}, **TENSOR_NUM},
    ("xpu", LAST): {
        "unified_update_model_status": {14},
        "build_sampling_params": {7},
        "draft_model_preprocess": {19},
        **TENSOR_NUM,
    },
}
"""Arguments on a date: their kinds (`Lockstep.forms`), or their number."""


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
        seen: dict[str, set[str | int]] = {}
        for method in methods(platform, version):
            twice = version == LAST or method in ("mtp", "ngram")
            for first in (True, False)[: 1 + twice]:
                chosen = scene(1000 + next(number), platform, version, method)
                chosen.pad_to_max = first
                if method == "mtp" and first:  # n-grams go on after the draft model's token
                    chosen.drafts, chosen.model_steps = max(chosen.drafts, 2), 1
                if chosen.drafts:
                    chosen.strategy = next(number) % 3
                lockstep = run(chosen, platform, OPS[platform], queue if first else None)
                for op, form in lockstep.forms:
                    seen.setdefault(op, set()).update((form, len(form.split())))
        for op, forms in FORMS[platform, version].items():
            kind = type(next(iter(forms)))
            assert {form for form in seen[op] if isinstance(form, kind)} == forms, (op, version)
        called |= seen.keys()
    assert called == PLATFORMS[platform][1].keys()
