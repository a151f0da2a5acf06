"""Thrift's compact encoding, as far as Parquet uses it: structures to plain data and back.

Source: the compact protocol of Apache Thrift, in which Parquet stores its footer and its page headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MOST_DEPTH = 32
_MOST_ITEMS = 1 << 20


class NotThrift(Exception):
    """The bytes are no structure in the compact encoding."""


@dataclass
class Value:
    """One encoded value.

    Args:
        kind: type number of the protocol.
        content: bool, int, bytes, a list of `Value`, or a dict of `Value` by field number.
        item_kind: of lists: type number of the items.
    """

    kind: int
    content: Any
    item_kind: int = 0


Struct = dict[int, Value]


def i32(number: int) -> Value:
    """A 32-bit number."""
    return Value(_I32, number)


def i64(number: int) -> Value:
    """A 64-bit number."""
    return Value(_I64, number)


def struct(fields: Struct) -> Value:
    """A structure inside another one."""
    return Value(_STRUCT, fields)


def list_of(items: list[Value], item_kind: int | None = None) -> Value:
    """A list; the kind of an empty one has to be given."""
    return Value(_LIST, items, items[0].kind if item_kind is None else item_kind)


class Reader:
    """Decodes structures out of bytes.

    Args:
        data: the bytes.
        position: where to begin; afterwards behind the structure.
    """

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self._data = data
        self.position = position

    def struct(self, depth: int = 0) -> Struct:
        """Decode a structure.

        Raises:
            NotThrift: these bytes are none.
        """
        if depth > _MOST_DEPTH:
            raise NotThrift("too deep")
        fields: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[number] = self._value(kind, depth) if kind not in (_TRUE, _FALSE) else Value(kind, kind == _TRUE)

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (_TRUE, _FALSE):  # inside a list a boolean is a byte
            return Value(kind, self._byte() == _TRUE)
        if kind == _BYTE:
            return Value(kind, self._byte())
        if kind in (_I16, _I32, _I64):
            return Value(kind, self._zigzag())
        if kind == _DOUBLE:
            return Value(kind, self._bytes(8))
        if kind == _BINARY:
            return Value(kind, self._bytes(self._varint()))
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if count > _MOST_ITEMS:
                raise NotThrift("a list without end")
            return Value(kind, [self._value(head & 15, depth + 1) for _ in range(count)], head & 15)
        if kind == _STRUCT:
            return Value(kind, self.struct(depth + 1))
        raise NotThrift(f"type {kind}")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self._data):
            raise NotThrift("the data ends inside a structure")
        found = bytes(self._data[self.position : end])
        self.position = end
        return found

    def _varint(self) -> int:
        number, shift = 0, 0
        while shift < 70:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise NotThrift("a number without end")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


def encode(fields: Struct) -> bytes:
    """Encode a structure."""
    out = bytearray()
    last = 0
    for number, value in sorted(fields.items()):
        kind = (_TRUE if value.content else _FALSE) if value.kind in (_TRUE, _FALSE) else value.kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += _varint(_zigzag(number))
        if kind not in (_TRUE, _FALSE):
            out += _encoded(value)
        last = number
    out.append(0)
    return bytes(out)


def _encoded(value: Value) -> bytes:
    if value.kind in (_TRUE, _FALSE):
        return bytes([_TRUE if value.content else _FALSE])
    if value.kind == _BYTE:
        return bytes([value.content])
    if value.kind in (_I16, _I32, _I64):
        return _varint(_zigzag(value.content))
    if value.kind == _DOUBLE:
        return bytes(value.content)
    if value.kind == _BINARY:
        return _varint(len(value.content)) + bytes(value.content)
    if value.kind == _STRUCT:
        return encode(value.content)
    count = len(value.content)
    head = bytes([count << 4 | value.item_kind]) if count < 15 else bytes([0xF0 | value.item_kind]) + _varint(count)
    return head + b"".join(_encoded(item) for item in value.content)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else ((-number) << 1) - 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
