"""An operator that no reference knows is told so, with what to do; it is no bug of ours."""

from __future__ import annotations

import pytest
from onnx import helper

from tests.support.small_models import model, node, weights
from tilegrad.errors import UserError
from tilegrad.verify.float64_model import Float64Model


def test_foreign_operators_are_named() -> None:
    strange = helper.make_node("Strange", ["h"], ["y"], name="act", domain="com.example")
    proto = model([node("Gemm", ["x", "w"], ["h"], "fc"), strange], [1, 4], [1, 3], [weights("w", 4, 3)])
    with pytest.raises(UserError, match=r"no reference can execute com\.example\.Strange") as caught:
        Float64Model(proto, "mse")
    assert "--no-verify" in str(caught.value)
