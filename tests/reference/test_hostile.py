"""No input value may crash an op, make it warn, or make it touch memory outside its tensors."""

from __future__ import annotations

import warnings

import pytest

from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import cases, hostile
from tests.support.running import BACKEND, run

COUNT = {"ngram_index_update": 20}  # an index full of random bits makes every look-up go round its table


@pytest.mark.parametrize("op", OPS)
def test_hostile_values(op):
    """They make no op warn, either."""
    for options in cases(op, COUNT.get(op, 80)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(op, hostile(op, workspace=BACKEND.workspace, **options))
