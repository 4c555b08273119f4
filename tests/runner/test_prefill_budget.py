"""Prompts beside decoding requests: how many of their tokens a step takes, by times that are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.prefill_budget import PrefillBudget
from specdec_hal.runner.scheduler import Schedule
from tests.runner.conftest import make_runner
from tests.support.history_model import DeviceHistoryModel

SIZES = [64, 128, 256, 512, 1024]


def padded(slots: int) -> list[int]:
    return SIZES


def decode(budget: PrefillBudget, seconds: Callable[[int], float], steps: int = 60, slots: int = 60) -> list[int]:
    """The limits of steps that take so many seconds by their padded size, all with prompts after some without."""
    limits = list[int]()
    for _ in range(5):
        budget.stepped(slots, 0, seconds(64))
    for _ in range(steps):
        limit = budget.limit(slots)
        assert limit is not None
        limits.append(limit)
        budget.stepped(slots, limit, seconds(next(size for size in SIZES if size >= slots + limit)))
    return limits


def test_it_finds_the_largest_size_that_is_fast_enough() -> None:
    budget = PrefillBudget(1.5, padded, 1)
    assert budget.limit(60) is None
    limits = decode(budget, lambda size: 1.0 + 0.0008 * size)  # 1.05 s without; 1.20 s of 256 tokens, 1.41 s of 512
    assert limits[:6:2] == [128 - 60, 256 - 60, 512 - 60]
    assert set(limits[4:]) == {512 - 60}


def test_a_size_that_proves_too_slow_is_left_and_tried_again() -> None:
    budget = PrefillBudget(1.5, padded, 1)
    limits = decode(budget, lambda size: 1.0 if size < 512 else 1.8, 1200)
    assert limits[4:7] == [512 - 60, 512 - 60, 256 - 60]  # the sizes below promised more
    assert limits.count(512 - 60) == 6
    assert decode(budget, lambda size: 1.0, 1200)[-1] == 1024 - 60


def test_one_disturbed_step_changes_nothing() -> None:
    budget, times = PrefillBudget(1.5, padded, 1), iter([1.0] * 9 + [9.0] + [1.0] * 99 + [9.0] + [1.0] * 99)
    assert set(decode(budget, lambda size: next(times), 99)[8:]) == {1024 - 60}


def test_the_smallest_size_is_allowed_whatever_it_takes() -> None:
    limits = decode(PrefillBudget(1.5, padded, 1), lambda size: float(size), slots=60)
    assert set(limits) == {128 - 60}
    limits = decode(PrefillBudget(1.5, padded, 1), lambda size: float(size), slots=40)
    assert limits[:4] == [64 - 40] * 2 + [128 - 40] * 2 and set(limits[4:]) == {64 - 40}


def test_first_steps_that_compile_do_not_count() -> None:
    budget = PrefillBudget(1.5, padded, 1)
    budget.stepped(60, 0, 30.0)
    budget.stepped(60, 128 - 60, 30.0)
    assert set(decode(budget, lambda size: 1.0 + 0.004 * size)) == {128 - 60}


@pytest.mark.parametrize("most", [1, 3, None])
def test_a_step_keeps_to_it_while_requests_decode(most: int | None) -> None:
    """And only then; tokens are the same."""

    def decoded(limit: Callable[[int], int | None]) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, int]]]:
        sizes = {"max_num_seqs": 4, "prefill_chunk": 8, "block_size": 4, "max_num_batched_tokens": 40}
        runner = make_runner(model=DeviceHistoryModel(), runner=sizes)
        runner.scheduler.prompt_limit = limit
        steps, launched = list[tuple[int, int]](), runner.scheduler.launched

        def watch(step: Schedule) -> None:
            steps.append((int(step.decodes.sum()), sum(work.chunk for work in step.work.values())))
            launched(step)

        runner.scheduler.launched = watch  # type: ignore[method-assign]
        for i in range(8):
            params = SamplingParams(max_new_tokens=12, temperature=0.7, seed=i)
            runner.add_request(Request(str(i), [3, 4, 5, 6, 7] * (1 + i % 4), params))
        return {name: output.token_ids for name, output in runner.run().items()}, steps

    tokens, steps = decoded(lambda decoding: most)
    expected, free = decoded(lambda decoding: None)
    assert tokens == expected
    mixed = [prompts for decoding, prompts in steps if decoding and prompts]
    assert mixed and (most is None or max(mixed) == most)
    assert steps[0] == free[0] == (0, 29)  # nobody decoded
    assert max(prompts for decoding, prompts in free if decoding) > 3


def test_the_key_limits_steps_by_their_time() -> None:
    runner = make_runner(model=DeviceHistoryModel(), runner={"mixed_step_ratio": 1.5, "prefill_chunk": 32})
    seen = list[tuple[int, int]]()
    assert runner.prefill_budget is not None
    runner.prefill_budget.stepped = lambda *step: seen.append(step[:2])  # type: ignore[method-assign,misc]
    runner.add_request(Request("a", [3, 4], SamplingParams(max_new_tokens=40)))
    for _ in range(4):
        runner.step()
    runner.add_request(Request("b", [3, 4] * 30, SamplingParams(max_new_tokens=4)))
    runner.run()
    assert (1, 0) in seen and [prompts for _, prompts in seen if prompts] == [32, 28]
    assert make_runner().prefill_budget is None


def test_settings_that_must_not_depend_on_time_refuse_it() -> None:
    with pytest.raises(ConfigError, match=r"runner\.mixed_step_ratio: expected null: it depends on the time of steps"):
        parse({"runner": {"mixed_step_ratio": 1.5}, "engine": {"tensor_parallel": 2}})
    with pytest.raises(ConfigError, match="mixed_step_ratio"):
        parse({"runner": {"mixed_step_ratio": 1.0}})
