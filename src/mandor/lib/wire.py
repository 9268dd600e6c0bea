"""Protobuf message classes made from a table at run time, without code generation; protocols do not share a
registry.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[int, tuple[str, str]]
_Field = descriptor_pb2.FieldDescriptorProto


def make_messages(package: str, table: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            _add_field(message, package, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def _add_field(message: Any, package: str, number: int, name: str, kind: str) -> None:
    repeated, kind = kind.startswith("*") or kind == "map", kind.lstrip("*")
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    added = message.field.add(name=name, number=number, label=label)
    if kind == "map":
        entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for place, part in ((1, "key"), (2, "value")):
            entry.field.add(name=part, number=place, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"
    elif kind[0].isupper():
        added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        added.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
