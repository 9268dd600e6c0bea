"""The part of etcd's v3 protocol that a store needs, as a table; messages are made from it at run time."""

from dataclasses import dataclass
from typing import Any

from mandor.lib.wire import Fields, make_messages

_HEADER: Fields = {1: ("header", "ResponseHeader")}

MESSAGES: dict[str, Fields] = {
    "ResponseHeader": {1: ("cluster_id", "uint64"), 2: ("member_id", "uint64"), 3: ("revision", "int64")},
    "KeyValue": {
        1: ("key", "bytes"),
        2: ("create_revision", "int64"),
        3: ("mod_revision", "int64"),
        5: ("value", "bytes"),
    },
    "Event": {1: ("type", "int32"), 2: ("kv", "KeyValue")},
    "RangeRequest": {
        1: ("key", "bytes"),
        2: ("range_end", "bytes"),
        3: ("limit", "int64"),
        4: ("revision", "int64"),
        8: ("keys_only", "bool"),
        9: ("count_only", "bool"),
    },
    "RangeResponse": {**_HEADER, 2: ("kvs", "*KeyValue"), 3: ("more", "bool"), 4: ("count", "int64")},
    "PutRequest": {1: ("key", "bytes"), 2: ("value", "bytes")},
    "PutResponse": {**_HEADER},
    "DeleteRangeRequest": {1: ("key", "bytes"), 2: ("range_end", "bytes")},
    "DeleteRangeResponse": {**_HEADER, 2: ("deleted", "int64")},
    "Compare": {1: ("result", "int32"), 2: ("target", "int32"), 3: ("key", "bytes"), 6: ("mod_revision", "int64")},
    "RequestOp": {
        1: ("request_range", "RangeRequest"),
        2: ("request_put", "PutRequest"),
        3: ("request_delete_range", "DeleteRangeRequest"),
    },
    "ResponseOp": {1: ("response_range", "RangeResponse")},
    "TxnRequest": {1: ("compare", "*Compare"), 2: ("success", "*RequestOp")},
    "TxnResponse": {**_HEADER, 2: ("succeeded", "bool"), 3: ("responses", "*ResponseOp")},
    "CompactionRequest": {1: ("revision", "int64")},
    "CompactionResponse": {**_HEADER},
    "WatchCreateRequest": {
        1: ("key", "bytes"),
        2: ("range_end", "bytes"),
        3: ("start_revision", "int64"),
        4: ("progress_notify", "bool"),
    },
    "WatchRequest": {1: ("create_request", "WatchCreateRequest")},
    "WatchResponse": {
        **_HEADER,
        3: ("created", "bool"),
        4: ("canceled", "bool"),
        5: ("compact_revision", "int64"),
        6: ("cancel_reason", "string"),
        11: ("events", "*Event"),
    },
    "StatusRequest": {},
    "StatusResponse": {
        **_HEADER,
        2: ("version", "string"),
        3: ("db_size", "int64"),
        4: ("leader", "uint64"),
        8: ("errors", "*string"),
        12: ("db_size_quota", "int64"),
    },
    "AuthenticateRequest": {1: ("name", "string"), 2: ("password", "string")},
    "AuthenticateResponse": {**_HEADER, 2: ("token", "string")},
}

EVENT_DELETE = 1
COMPARE_EQUAL = 0
COMPARE_MOD = 2


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    request: Any
    response: Any


messages = make_messages("mandor.etcd", MESSAGES)


def _method(service: str, name: str, message: str) -> Method:
    return Method(f"/etcdserverpb.{service}/{name}", messages[f"{message}Request"], messages[f"{message}Response"])


RANGE = _method("KV", "Range", "Range")
PUT = _method("KV", "Put", "Put")
TXN = _method("KV", "Txn", "Txn")
COMPACT = _method("KV", "Compact", "Compaction")
WATCH = _method("Watch", "Watch", "Watch")
STATUS = _method("Maintenance", "Status", "Status")
AUTHENTICATE = _method("Auth", "Authenticate", "Authenticate")
