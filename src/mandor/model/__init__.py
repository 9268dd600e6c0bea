"""The API objects: immutable, validated structs without I/O."""
