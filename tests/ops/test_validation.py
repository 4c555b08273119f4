"""Errors of wrong calls, for every declared operand and attribute of every op."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError, SpecDecError, UnsupportedError
from specdec_hal.ops import OPS, get_op
from specdec_hal.ops.spec import Dim, Role
from specdec_hal.ops.validate import check_call
from specdec_hal.ops.vocabulary import MAXIMUM, MINIMUM
from tests.support.calls import OPERANDS, valid_call
from tests.support.dlpack import CPU, FakeTensor
from tests.support.running import BACKEND, copied, run

WRITTEN = [(op, name) for op, name in OPERANDS if OPS[op].by_name[name].role is not Role.IN]
ATTRIBUTES = [(op, attr.name) for op, spec in OPS.items() for attr in spec.attrs]


def refused(op, call, *, about="", **exact):
    """The error of a call that must be refused and must write nothing."""
    before = copied(call)
    with pytest.raises(ArgumentError) as caught:
        getattr(BACKEND, op)(**call)
    for name, value in before.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(call[name], value, f"{name} was written")
    error = caught.value
    assert isinstance(error, SpecDecError) and isinstance(error, ValueError)
    assert (error.op, error.backend) == (op, "reference")
    message = str(error)
    for part in (op, "reference", error.argument, error.expected, error.got, error.hint):
        assert part and part in message
    assert about in message
    for field, value in exact.items():
        assert getattr(error, field) == value, message
    return error


@pytest.mark.parametrize("op", OPS)
def test_what_each_operand_may_be(op):
    """What is said of one that it may not be; the suite's group `arguments` breaks each in more ways."""
    for name, operand in OPS[op].by_name.items():
        call = valid_call(op, name)
        array = call[name]
        run(op, call)
        without = {n: v for n, v in call.items() if n != name}
        if operand.optional:
            run(op, without)
            run(op, {**without, name: None})
        else:
            refused(op, {**call, name: None}, argument=name, got="nothing")
        error = refused(op, {**call, name: array.tolist()}, argument=name, got="list")
        assert error.expected.startswith("a tensor (")
        for dtype in ("complex64", array.dtype.newbyteorder()) if array.itemsize > 1 else ("int16",):
            error = refused(op, {**call, name: array.astype(dtype)}, argument=name)
            assert all(kind in error.expected for kind in operand.tensor.dtypes)
        if array.ndim > 1:
            refused(op, {**call, name: array.reshape(-1)}, about="rank", argument=name)
            refused(op, {**call, name: np.asfortranarray(array)}, about="contiguous", argument=name)
        elif array.ndim == 1:
            expected, actual = run(op, call), run(op, {**call, name: array.reshape(-1, 1)})
            for other in expected:
                np.testing.assert_array_equal(actual[other].reshape(expected[other].shape), expected[other])
        error = refused(op, {**call, f"{name}_": array}, argument=f"{name}_", got="an unknown name")
        assert error.hint == f"use '{name}'" and name in error.expected
        frozen = {**call, name: array.copy()}
        frozen[name].setflags(write=False)
        if operand.role is Role.IN:
            getattr(BACKEND, op)(**copied(call) | {name: frozen[name]})
        else:
            refused(op, frozen, about=f"writable tensor (role {operand.role.value})", argument=name)


@pytest.mark.parametrize("op, name", [pair for pair in OPERANDS if OPS[pair[0]].by_name[pair[1]].tensor.dtype_of])
def test_dtype_of_another_operand(op, name):
    call = valid_call(op, name, dtype="float32")
    error = refused(op, {**call, name: call[name].astype(np.float16)}, argument=name, got="float16")
    assert f"float32, that of '{OPS[op].by_name[name].tensor.dtype_of}'" in error.expected


def constrained_axes(op):
    """Axes whose extent a number or another operand decides, with calls."""
    spec = OPS[op]
    for name in spec.by_name:
        call = valid_call(op, name)
        attrs = {a: call[a] for a in spec.attr_by_name}
        for axis, dim in enumerate(spec.by_name[name].dims(attrs)):
            others = [o for o in spec.operands if o.name != name and o.name in call]
            shared = any(other.symbol == dim.symbol for o in others for other in o.dims(attrs))
            if dim.symbol is None or shared or (dim.symbol == "X" and "max_ngram_size" in attrs):
                yield call, name, axis


@pytest.mark.parametrize("op", OPS)
def test_wrong_shape(op):
    for call, name, axis in constrained_axes(op):
        for change in (1, -1):
            array = call[name]
            shape = [extent + change * (i == axis) for i, extent in enumerate(array.shape)]
            error = refused(op, {**call, name: np.resize(array, shape)}, about=name)
            # Of two operands that disagree, the later one is named, and the earlier one as the cause.
            assert error.argument == name or f"from '{name}'" in error.expected or error.expected == "B <= M"
            if error.argument == name and name != "index":
                assert str(shape) in error.got or "=" in error.got


def test_aliases_of_a_written_tensor():
    """The suite's cases share one element; these are views of every kind of the same tensor."""
    for op, name in WRITTEN:
        call = valid_call(op, name)
        array = call[name]
        for other, value in call.items():
            if other == name or not isinstance(value, np.ndarray):
                continue
            if value.shape == array.shape and value.dtype == array.dtype:
                view, buffer = np.from_dlpack(array), np.frombuffer(array, array.dtype).reshape(array.shape)
                for alias in (array, array[:], view, view[:], buffer, FakeTensor(array, (CPU, 0))):
                    refused(op, {**call, other: alias}, about="memory of its own")
                refused(op, {**call, name: np.from_dlpack(array)[:], other: view[:]}, about="memory of its own")


@pytest.mark.parametrize("op", OPS)
def test_what_may_share_memory(op):
    """Inputs may be one array; written tensors may be neighbours in one buffer."""
    call = valid_call(op)
    expected = run(op, call)
    inputs = {n: v for n, v in call.items() if isinstance(v, np.ndarray) and OPS[op].by_name[n].role is Role.IN}
    for name, value in inputs.items():
        for other, like in inputs.items():
            if other != name and (like.shape, like.dtype) == (value.shape, value.dtype):
                run(op, {**call, other: value})
    arrays = {n: v for n, v in call.items() if isinstance(v, np.ndarray)}
    memory = np.zeros(sum(-(-v.nbytes // 8) * 8 for v in arrays.values()), np.uint8)
    packed, start = {}, 0
    for name, value in arrays.items():
        packed[name] = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
        packed[name][...] = value
        start += -(-value.nbytes // 8) * 8
    getattr(BACKEND, op)(**{**call, **packed})
    for name, value in expected.items():
        np.testing.assert_array_equal(packed[name], value)


def test_devices_must_agree():
    call = valid_call("gather_accepted")
    call["logits"] = call["logits"].astype(np.float32)
    on_gpu = {n: FakeTensor(v) for n, v in call.items()}
    check_call(OPS["gather_accepted"], (), on_gpu, backend="gpu", device="cuda")
    on_gpu["rows"] = FakeTensor(call["rows"], (2, 1))
    with pytest.raises(ArgumentError, match="'rows': expected a tensor on cuda:0, got one on cuda:1"):
        check_call(OPS["gather_accepted"], (), on_gpu, backend="gpu", device="cuda")
    on_gpu["rows"] = call["rows"]
    with pytest.raises(ArgumentError, match="'rows': expected a tensor on cuda:0, got one on cpu"):
        check_call(OPS["gather_accepted"], (), on_gpu, backend="gpu", device="cuda")


def test_a_tensor_that_refuses_to_be_shared():
    class Sparse:
        def __dlpack__(self, **kwargs):
            raise BufferError("sparse layout")

        def __dlpack_device__(self):
            return (CPU, 0)

    error = refused("ngram_index_reset", {**valid_call("ngram_index_reset"), "reset_slots": Sparse()})
    assert error.argument == "reset_slots" and "sparse layout" in error.got


@pytest.mark.parametrize("op, name", [p for p in OPERANDS if OPS[p[0]].by_name[p[1]].when is not None])
def test_an_operand_of_another_mode(op, name):
    call = valid_call(op, name)
    when = OPS[op].by_name[name].when
    for value in OPS[op].attr_by_name[when.attr].kind:
        if value not in when.values:
            other = valid_call(op, **{when.attr: value})
            error = refused(op, {**other, name: call[name]}, argument=name)
            assert error.expected == f"nothing unless {when}"


@pytest.mark.parametrize("op", OPS)
def test_positional_tensors(op):
    spec, call = OPS[op], valid_call(op)
    tensors = [call.get(operand.name) for operand in spec.operands]
    attrs = {a: call[a] for a in spec.attr_by_name}
    expected = run(op, call)
    call_tensors = [t.copy() if t is not None else None for t in tensors]
    getattr(BACKEND, op)(*call_tensors, **attrs)
    for operand, array in zip(spec.operands, call_tensors, strict=True):
        if operand.name in expected:
            np.testing.assert_array_equal(array, expected[operand.name])
    with pytest.raises(ArgumentError, match=r"at most \d+ positional tensors, got \d+; pass attributes by keyword"):
        getattr(BACKEND, op)(*tensors, tensors[0], **attrs)
    first = spec.operands[0].name
    with pytest.raises(ArgumentError, match=f"'{first}': expected one value, got two"):
        getattr(BACKEND, op)(*tensors, **attrs, **{first: tensors[0]})


def test_a_name_like_nothing_else():
    refused("ngram_index_reset", {**valid_call("ngram_index_reset"), "qqqqqq": 1}, argument="qqqqqq", hint="remove it")


def test_attributes():
    for op, name in ATTRIBUTES:
        call, attr = valid_call(op), OPS[op].attr_by_name[name]
        for value in (None, np.float32(1), *(() if attr.kind is bool else (True,))):
            assert refused(op, {**call, name: value}, argument=name, got=repr(value)).expected == attr.allowed()
        if issubclass(attr.kind, IntEnum):
            taken = {member.name.lower(): member for member in attr.kind}
        else:
            taken = {(np.bool_ if attr.kind is bool else np.int64)(call[name]): call[name]}
        for given, wanted in taken.items():
            mode = {**valid_call(op, **{name: wanted}), name: given}
            found = check_call(get_op(op), (), mode, backend="x").attrs[name]
            assert type(found) is type(wanted) and found == wanted


def test_missing_attributes():
    for op, name in ATTRIBUTES:
        attr = OPS[op].attr_by_name[name]
        given = {} if attr.default is None else {name: attr.default}
        call = {n: v for n, v in valid_call(op, **given).items() if n != name}
        if attr.from_backend:
            checked = check_call(OPS[op], (), call, backend="x", attr_defaults={name: list(attr.kind)[-1]})
            assert checked.attrs[name] is list(attr.kind)[-1]
        elif attr.default is not None:
            assert check_call(OPS[op], (), call, backend="x").attrs[name] == attr.default
        else:
            refused(op, call, argument=name, got="nothing", expected=attr.allowed())


RELATIONS = [(op, r) for op, spec in OPS.items() for r in spec.relations]


@pytest.mark.parametrize("op, relation", RELATIONS, ids=lambda v: str(v))
def test_relations(op, relation):
    left, right = relation.left, relation.right
    if left in OPS[op].attr_by_name:
        call = {**valid_call(op), left: 5, right: 4}
    else:
        # Sizes are generated within the relation; tensors of two calls are mixed to break it.
        small, large = valid_call(op), valid_call(op, **{right: 10, left: 9} if right != "V" else {"V": 20, left: 19})
        spec = OPS[op]
        attrs = {a: small[a] for a in spec.attr_by_name}
        takes = {o.name for o in spec.operands if any(d.symbol == left for d in o.dims(attrs))}
        call = {n: large[n] if n in takes and n in large else v for n, v in small.items()}
    error = refused(op, call, expected=str(relation))
    assert f"{left} = " in error.got and f"{right} = " in error.got


@pytest.mark.parametrize("symbol", MINIMUM)
def test_sizes_that_may_not_be_zero(symbol):
    for op, spec in OPS.items():
        call = valid_call(op)
        attrs = {a: call[a] for a in spec.attr_by_name}
        emptied = {}
        for operand in spec.operands:
            dims = operand.dims(attrs)
            if operand.name in call and Dim(symbol, 0) in dims:
                array = call[operand.name]
                shape = [0 if dim == Dim(symbol, 0) else n for dim, n in zip(dims, array.shape, strict=True)]
                emptied[operand.name] = np.zeros(shape, array.dtype)
        if emptied:
            assert refused(op, {**call, **emptied}).expected == f"{symbol} >= 1"


@pytest.mark.parametrize("symbol", MAXIMUM)
def test_sizes_that_are_too_large(symbol):
    """One row of logits, where there are any: the largest take 64 MiB."""
    refusals = 0
    for op, spec in OPS.items():
        call = valid_call(op, R_cap=1, M=1, B=1) if spec.section in (3, 7, 8) else valid_call(op)
        attrs = {a: call[a] for a in spec.attr_by_name}
        for operand in spec.operands:
            dims = operand.dims(attrs)
            if operand.name in call and dims and dims[-1] == Dim(symbol, 0):
                grown = np.zeros((*call[operand.name].shape[:-1], MAXIMUM[symbol] + 1), call[operand.name].dtype)
                with pytest.raises(ArgumentError) as caught:  # `refused` would copy and compare all of it
                    check_call(spec, (), {**call, operand.name: grown}, backend="x")
                refusals += caught.value.expected == f"{symbol} <= {MAXIMUM[symbol]}"
                break
    assert refusals >= 4


def test_offsets_cannot_be_empty():
    call = valid_call("token_logprobs")
    error = refused("token_logprobs", {**call, "cu_batch_token_offset": np.zeros(0, np.int32)})
    assert error.argument == "cu_batch_token_offset" and "B+1 cannot be 0" in error.hint


def test_unknown_ops():
    with pytest.raises(UnsupportedError, match="no op 'ngram_macth' in the contract; did you mean 'ngram_match'"):
        get_op("ngram_macth")
    with pytest.raises(UnsupportedError, match="no op 'xyzzy' in the contract; ops: prepare_inputs"):
        get_op("xyzzy")


def test_a_wrong_call_is_refused_however_often_a_right_one_passed():
    """Accepted calls are remembered by their looks; nothing else may pass for them."""
    call = valid_call("update_model_status")
    for _ in range(3):
        BACKEND.update_model_status(**copied(call))
        for name in ("step_idx", "accept_num"):
            refused("update_model_status", {**call, name: call[name].astype(np.float32)}, argument=name)
            read_only = call[name].copy()
            read_only.setflags(write=False)
            refused("update_model_status", {**call, name: read_only}, argument=name)
        refused("update_model_status", {**call, "max_dec_len": call["step_idx"]}, about="memory of its own")


def test_what_is_remembered_is_bounded():
    spec = OPS["ngram_index_reset"]
    for n in range(1, 600):
        check_call(spec, (np.zeros((n, 4), np.uint8), np.zeros(n, np.bool_)), {}, backend="x")
    assert 0 < len(spec.accepted) <= 256
