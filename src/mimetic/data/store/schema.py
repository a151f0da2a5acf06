"""Arrow schemas and columns of data files, to the letter of LeRobot 0.6.1 (spec/dataset.md 3, 4, 17)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.errors import DatasetError

_EXTENSION = "datasets.features.features.Array{}DExtensionType"
_MOST_DIMENSIONS = 5
_MESSAGE = (
    ("role", "string"),
    ("content", "string"),
    ("style", "string"),
    ("timestamp", "float32"),
    ("camera", "string"),
)
PERSISTENT = "language_persistent"


def data_schema(features: Mapping[str, DatasetFeature]) -> pa.Schema:
    """Schema of a data file.

    Args:
        features: all features in column order; videos have no column.

    Returns:
        Fields in the order of the features, with the `huggingface` entry that LeRobot's reader expects.

    Raises:
        DatasetError: a feature has more than five dimensions, or none.
    """
    stored = {name: feature for name, feature in features.items() if feature.dtype != "video"}
    content = {
        "info": {"features": {name: _described(name, feature) for name, feature in stored.items()}},
        "fingerprint": uuid.uuid5(uuid.NAMESPACE_OID, repr(sorted(stored.items()))).hex[:16],
    }
    return pa.schema(
        [_field(name, feature) for name, feature in stored.items()],
        metadata={"huggingface": json.dumps(content)},
    )


def episode_table(features: Mapping[str, DatasetFeature], columns: Mapping[str, Any]) -> pa.Table:
    """The rows of one episode as an Arrow table.

    Args:
        features: all features in column order.
        columns: by feature: arrays (frames, *shape) for numbers, (frames,) or (frames, 1) for shape (1,); lists of
            str for `string`; lists of encoded pictures (bytes) or of (bytes, name) for `image`; a list of message
            lists for `language`.

    Raises:
        DatasetError: a column is missing, has another length than the others, or another shape than declared.
    """
    schema = data_schema(features)
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise DatasetError(f"the episode lacks the columns {', '.join(f'`{name}`' for name in missing)}")
    lengths = {name: len(columns[name]) for name in schema.names}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"the columns of the episode differ in length: {lengths}")
    arrays = [_array(name, features[name], columns[name], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)


def _field(name: str, feature: DatasetFeature) -> pa.Field:
    kind = _type(name, feature)
    dimensions = len(feature.shape)
    if feature.is_numeric and dimensions > 1:
        metadata = {
            "ARROW:extension:name": _EXTENSION.format(dimensions),
            "ARROW:extension:metadata": json.dumps([list(feature.shape), feature.dtype]),
        }
        return pa.field(name, kind, metadata=metadata)
    return pa.field(name, kind)


def _type(name: str, feature: DatasetFeature) -> pa.DataType:
    if feature.dtype == "image":
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    if feature.dtype == "string":
        return pa.string()
    if feature.dtype == "language":
        return pa.list_(pa.struct([*_message_fields(name), pa.field("tool_calls", pa.list_(pa.json_()))]))
    value = pa.bool_() if feature.dtype == "bool" else pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return pa.list_(pa.field("element", value), feature.shape[0])
    if not 1 < len(feature.shape) <= _MOST_DIMENSIONS:
        raise DatasetError(f"`{name}` has shape {feature.shape}; one to {_MOST_DIMENSIONS} dimensions can be stored")
    for _ in feature.shape:
        value = pa.list_(pa.field("element", value))
    return value


def _message_fields(name: str) -> list[pa.Field]:
    """Fields of one language message; events have no time of their own."""
    kinds = {"string": pa.string(), "float32": pa.float32()}
    return [
        pa.field(key, kinds[kind], nullable=key not in ("role", "timestamp"))
        for key, kind in _MESSAGE
        if key != "timestamp" or name == PERSISTENT
    ]


def _described(name: str, feature: DatasetFeature) -> dict[str, Any]:
    """The feature in the vocabulary of the `huggingface` entry."""
    if feature.dtype == "image":
        return {"_type": "Image"}
    if feature.dtype == "language":
        message = {
            field.name: {"dtype": str(dict(_MESSAGE)[field.name]), "_type": "Value"} for field in _message_fields(name)
        }
        return {"feature": {**message, "tool_calls": {"feature": {"_type": "Json"}, "_type": "List"}}, "_type": "List"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,) or feature.dtype == "string":
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def _array(name: str, feature: DatasetFeature, values: Any, kind: pa.DataType) -> pa.Array:
    if feature.dtype == "image":
        cells = [cell if isinstance(cell, tuple) else (cell, None) for cell in values]
        return pa.array([{"bytes": data, "path": path} for data, path in cells], type=kind)
    if feature.dtype == "string":
        return pa.array([str(value) for value in values], type=kind)
    if feature.dtype == "language":
        return _language(values, kind)
    array = np.ascontiguousarray(values, dtype=np.dtype(feature.dtype))
    inner = () if feature.shape == (1,) else feature.shape
    if array.shape not in ((len(array), *inner), (len(array), *feature.shape)):
        raise DatasetError(f"`{name}` holds values of shape {array.shape[1:]}; {feature.shape} is declared")
    return _nested(array.reshape(len(array), *inner), kind)


def _nested(array: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    flat = pa.array(array.reshape(-1))
    if array.ndim == 1:
        return flat
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    kinds = []
    while pa.types.is_list(kind):
        kinds.append(kind)
        kind = kind.value_type
    for depth in range(array.ndim - 1, 0, -1):
        outer = int(np.prod(array.shape[:depth]))
        offsets = np.arange(outer + 1, dtype=np.int32) * array.shape[depth]
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat, type=kinds[depth - 1])
    return flat


def _language(values: Sequence[Sequence[Mapping[str, Any]]], kind: pa.DataType) -> pa.Array:
    """Message lists; tool calls become JSON texts."""
    plain = pa.list_(
        pa.struct(
            [pa.field("tool_calls", pa.list_(pa.string())) if f.name == "tool_calls" else f for f in kind.value_type]
        )
    )
    rows = [
        [{**message, "tool_calls": _texts(message.get("tool_calls"))} for message in messages or ()]
        for messages in values
    ]
    return pa.array(rows, type=plain).cast(kind)


def _texts(calls: Any) -> list[str] | None:
    return None if calls is None else [call if isinstance(call, str) else json.dumps(call) for call in calls]
