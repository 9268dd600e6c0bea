"""Problems of an etcd cluster that still answers: a member without contact, an alarm, low space."""

from collections.abc import Iterator, Mapping
from typing import Any

import grpc

QUOTA_SHARE = 0.8
"""Share of etcd's space quota from which on a problem is reported."""
NO_SPACE = "NOSPACE"
NOT_FOR_US = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}
"""Status codes of a member that runs, but whose status our role may not read."""
MAKE_ROOM = "compact, defragment, `etcdctl alarm disarm`, or raise --quota-backend-bytes"


def member_problems(members: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems; `members` maps each endpoint to its status or the error of the call."""
    for endpoint, status in members.items():
        yield from (f"etcd at {endpoint} {each}" for each in _of_member(status))


def _of_member(status: Any) -> Iterator[str]:
    if isinstance(status, grpc.aio.AioRpcError):
        if status.code() in NOT_FOR_US:
            return
        message = (status.details() or status.code().name.lower())[:200]
        yield f"does not answer ({message}): restart it; losing another member may stop all writes"
        return
    if isinstance(status, BaseException):
        raise status
    if not status.leader:
        yield "has no leader: it is cut off from the other members, or they are no majority"
    for error in status.errors:
        yield f"raises an alarm ({error[:200]}){': ' + MAKE_ROOM if NO_SPACE in error else ''}"
    quota = status.db_size_quota
    if quota and status.db_size > QUOTA_SHARE * quota and not any(NO_SPACE in each for each in status.errors):
        yield f"has used {status.db_size / quota:.0%} of its space and rejects writes when full: {MAKE_ROOM}"
