"""Each line of `signatures.TABLE`: order, number and kinds of arguments, shapes and dtypes of results, what is written
in place, numbers and flags of no dimension, columns, and buffers of more slots than are in use."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import paddle
import pytest

from specdec_hal_fastdeploy import ADAPTORS
from specdec_hal_fastdeploy import output as messages
from specdec_hal_fastdeploy.plan import Plan
from specdec_hal_fastdeploy.sysv import MessageQueue, queue_key
from tests.fastdeploy import signatures as table
from tests.fastdeploy.batches import tensor

LINES = table.signatures()


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A queue of this test's own."""
    number = 0x60000 + os.getpid() % 0x10000
    monkeypatch.setenv(messages.QUEUE_VARIABLE, str(number))
    yield
    for path in (messages.PLAIN_PATH, messages.SCORED_PATH):
        MessageQueue(queue_key(path, number)).remove()
    messages.queue.cache_clear()


def strided(array: Any) -> Any:
    """A tensor of the same values with other elements between its own."""
    if array.ndim == 0:
        return tensor(array)
    wide = tensor(np.concatenate([array, array], axis=-1)) if array.ndim > 1 else tensor(np.stack([array, array], 1))
    return wide[..., : array.shape[-1]] if array.ndim > 1 else wide[:, 0]


def call(
    line: table.Signature, values: dict[str, Any], make: Any = lambda name, array: tensor(array)
) -> tuple[list[Any], dict[str, Any]]:
    """A call's fresh results as arrays, and its tensors; an in-place op returns its outputs themselves."""
    given = {name: make(name, value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    tensors = {name: value for name, value in given.items() if isinstance(value, paddle.Tensor)}
    addresses = {name: tensors[name].data_ptr() for name in tensors if name in line.writes}
    result = ADAPTORS[line.platform][line.op](*given.values())
    assert {name: given[name].data_ptr() for name in addresses} == addresses, "in place"
    if line.returns:
        outputs = [result] if len(line.returns) == 1 else result
        assert [id(out) for out in outputs] == [id(tensors[name]) for name in line.returns], "returns its outputs"
        return [], tensors
    results = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
    return [out.numpy() for out in results], tensors


def same(line: table.Signature, values: dict[str, Any], wanted: tuple[list[Any], dict[str, Any]], *make: Any) -> None:
    """A call with the same values in other shapes gives and writes the same."""
    results, tensors = call(line, values, *make)
    for one, other in zip(results, wanted[0], strict=True):
        np.testing.assert_array_equal(one, other)
    for name in line.writes & tensors.keys():
        kept = wanted[1][name].numpy().reshape(-1)
        np.testing.assert_array_equal(tensors[name].numpy().reshape(-1)[: kept.size], kept, name)


def test_arguments_stand_in_this_order() -> None:
    for line in LINES:
        names = [argument.name for argument in line.arguments]
        forms = [form for form in ADAPTORS[line.platform][line.op].forms if form.names == names]
        assert len(forms) == 1, line
        columns = zip(forms[0].is_tensor, forms[0].optional, forms[0].is_int, forms[0].kinds, strict=True)
        for argument, (is_tensor, optional, is_int, kind) in zip(line.arguments, columns, strict=True):
            assert is_tensor == (argument.kind == "T"), (line, argument)
            assert is_int == (argument.kind == "int") and (kind is None) == is_tensor, (line, argument)
            assert not is_tensor or optional == argument.optional, (line, argument)


def test_every_served_op_has_a_line() -> None:
    assert {(line.platform, line.op) for line in LINES} == {(p, name) for p in ADAPTORS for name in ADAPTORS[p]}


@pytest.mark.parametrize("layer", ["cpu"], indirect=True)  # whose launches keep pointers
@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_line(layer: Any, line: table.Signature, monkeypatch: pytest.MonkeyPatch) -> None:
    values = table.arguments(line)
    base = call(line, values)
    results_and_what_is_written(line, values, *base)
    numbers_flags_and_columns(line, values, base)
    more_slots_than_are_in_use(line, values, base)
    same(line, values, base, lambda name, array: tensor(array) if name in line.writes else strided(array))
    what_a_plan_holds(line, values, monkeypatch)


def results_and_what_is_written(
    line: table.Signature, values: dict[str, Any], results: list[Any], tensors: dict[str, Any]
) -> None:
    short = {"float32": "f32", "int64": "i64", "int32": "i32"}
    shapes = [f"{short[str(out.dtype)]}{list(out.shape)}".replace(" ", "") for out in results]
    wanted = [
        gives[:4] + ",".join(str(eval(size, {}, dict(table.SIZES))) for size in gives[4:-1].split(",")) + "]"
        for gives in line.gives
    ]
    assert shapes == wanted
    for name, now in tensors.items():
        if name not in line.writes:
            np.testing.assert_array_equal(now.numpy(), values[name], f"{name} is only read")


def numbers_flags_and_columns(line: table.Signature, values: dict[str, Any], base: Any) -> None:
    """Ints as tensors of no dimension and of one, flags of no dimension, slots as columns."""
    numbers = [argument.name for argument in line.arguments if argument.kind == "int"]
    for shape in ([], [1]) if numbers else ():
        same(line, values | {name: np.full(shape, values[name], np.int64) for name in numbers}, base)
    single = [n for n in ("not_need_stop", "has_running_seqs", "token_num") if isinstance(values.get(n), np.ndarray)]
    columns = [n for n in table.PER_SLOT if isinstance(values.get(n), np.ndarray) and values[n].ndim == 1]
    shaped = {name: values[name].reshape([]) for name in single}
    same(line, values | shaped | {name: values[name].reshape(-1, 1) for name in columns}, base)


LENGTHS = ("seq_lens_this_time", "seq_len", "seq_len_this_time")


def longer(name: str, value: Any) -> Any:
    """A buffer of two more slots, which are free; what describes the step itself is as it was."""
    own = name.startswith(("end_", "eos_", "target_tokens", "next_tokens", "inter_", "batch_id", "cu_"))
    if name not in table.PER_SLOT | table.WHOLE or own or name in LENGTHS or len(value) != 3:
        return value
    free = np.ones(2, bool) if name.endswith("stop_flags") else np.zeros((2, *value.shape[1:]), value.dtype)
    return np.concatenate([value, free])


def more_slots_than_are_in_use(line: table.Signature, values: dict[str, Any], base: Any) -> None:
    """Runners hand over buffers of all slots, and the lengths of those in use."""
    if any(name in LENGTHS for name in values):
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        same(line, values | {name: longer(name, value) for name, value in arrays.items()}, base)


def what_a_plan_holds(line: table.Signature, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of an in-place op read only tensors of the caller or the plan."""
    plans: list[tuple[Plan, list[Any]]] = []
    run = Plan.run

    def watched(self: Plan, op: str, /, **given: Any) -> None:
        plans.append((self, [value for value in given.values() if isinstance(value, paddle.Tensor)]))
        run(self, op, **given)

    monkeypatch.setattr(Plan, "run", watched)
    given = [tensor(value) if isinstance(value, np.ndarray) else value for value in values.values()]
    ADAPTORS[line.platform][line.op](*given)
    for plan, used in () if line.gives else plans:
        known = {id(value) for value in (*given, *plan.held)}
        assert {id(value) for value in used} <= known
