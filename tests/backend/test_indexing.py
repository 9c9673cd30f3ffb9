"""Reshaped indices, addresses, coefficients."""

from __future__ import annotations

import torch

from jitshape.backend.indexing import (
    address,
    coefficient,
    is_dense,
    match_shapes,
    reshape_index,
)
from jitshape.ir.symint import Algebra, sym_max
from jitshape.ir.types import TensorType


def setup():
    algebra = Algebra()
    return algebra, *(algebra.symbol(name, 0) for name in ("b", "s", "i", "j"))


def test_shapes_match_by_products_of_symbols():
    algebra, b, s, _, _ = setup()
    assert match_shapes(algebra, (b, s, 64), (b * s, 64)) == [((0, 1), (0,)), ((2,), (1,))]
    assert match_shapes(algebra, (b, 1, s), (b, s, 1)) == [((0,), (0,)), ((2,), (1,))]
    assert match_shapes(algebra, (b, 6), (b, 4)) is None


def test_merging_dimensions_needs_no_division():
    algebra, b, s, i, j = setup()
    assert reshape_index(algebra, (i, j, 3), (b, s, 64), (b * s, 64)) == (i * s + j, 3)


def test_splitting_what_was_merged_gives_the_parts_where_extents_are_known():
    algebra, b, s, i, j = setup()
    merged = (i * s + j,)
    extents = {i.symbol.id: b, j.symbol.id: s}
    assert reshape_index(algebra, merged, (b * s,), (b, s), extents) == (i, j)
    text = str(reshape_index(algebra, merged, (b * s,), (b, s))[1])
    assert "%" in text


def test_addresses_and_coefficients_leave_out_the_max_of_empty_sizes():
    algebra, b, s, i, j = setup()
    type_ = TensorType((b, s), (sym_max(s, 1), 1), torch.float32, offset=0)
    where = address(algebra, type_, (i, j), type_)
    assert where == i * s + j and is_dense(algebra, type_)
    assert coefficient(algebra, where, i.symbol.id) == s
    assert coefficient(algebra, where // 2, i.symbol.id) is None
