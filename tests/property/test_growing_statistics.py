"""Statistics that grow episode by episode equal those of all rows, whatever the values and the order of sizes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from mimetic.data.record.totals import ColumnTotal
from mimetic.data.statistics import numeric_stats

SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (2, 2, 2)])
VALUES = st.floats(-1e6, 1e6, width=32) | st.just(float("nan")) | st.sampled_from([0.0, 1.0, -1.0])


@given(st.data(), SHAPES, st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_growing_statistics_equal_those_of_all_rows(data, shape, lengths):
    parts = [data.draw(hn.arrays(np.float64, (length, *shape), elements=VALUES)) for length in lengths]
    total = ColumnTotal.of(parts[0])
    for part in parts[1:]:
        before = total.ordered.copy()
        grown = total.merged(ColumnTotal.of(part))
        assert np.array_equal(total.ordered, before, equal_nan=True), "the old total changed"
        total = grown
    expected = numeric_stats(np.concatenate(parts))
    found = total.stats()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        exact = name not in ("mean", "std")
        # A sum in another order: errors are relative to the largest value, not to the mean.
        largest = float(np.nanmax(np.abs(np.concatenate(parts)), initial=1.0))
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-12, "atol": 1e-9 * largest}
        np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


@given(st.data(), st.sampled_from([np.uint8, np.int16, np.bool_, np.float32]), hn.array_shapes(min_dims=1, max_dims=3))
def test_every_type_of_column_has_statistics(data, dtype, shape):
    elements = st.floats(-1e6, 1e6, width=32) if dtype is np.float32 else None
    values = data.draw(hn.arrays(dtype, shape, elements=elements))
    expected = numeric_stats(values)
    for name, value in ColumnTotal.of(values).stats().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=1e-9, equal_nan=True, err_msg=name)


def test_infinite_values_are_no_reason_to_lose_an_episode():
    """Some sensors send them; deviation and mean of such a channel say so, without a warning."""
    total = ColumnTotal.of(np.asarray([[1.0, np.inf], [2.0, 3.0]]))
    found = total.merged(ColumnTotal.of(np.asarray([[3.0, -np.inf]]))).stats()
    assert found["max"].tolist() == [3.0, np.inf]
    assert found["min"].tolist() == [1.0, -np.inf]
    np.testing.assert_allclose(found["mean"], [2.0, np.nan], equal_nan=True)
