"""What ails members of etcd that still answer together: one that is away, an alarm, space that runs out."""

from collections.abc import Iterator, Mapping
from typing import Any

import grpc

QUOTA_SHARE = 0.8
"""Of the space that etcd may take: beyond it there is time left to do something."""
NO_SPACE = "NOSPACE"
NOT_FOR_US = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}
"""It is there, but our role may not ask how it is."""
MAKE_ROOM = "compact, defragment, `etcdctl alarm disarm`, or raise --quota-backend-bytes"


def ailments_of(members: Mapping[str, Any]) -> Iterator[str]:
    """`members`: each endpoint, with its status or the error instead of one."""
    for endpoint, status in members.items():
        yield from (f"etcd at {endpoint} {each}" for each in _of_member(status))


def _of_member(status: Any) -> Iterator[str]:
    if isinstance(status, grpc.aio.AioRpcError):
        if status.code() in NOT_FOR_US:
            return
        story = (status.details() or status.code().name.lower())[:200]
        yield f"does not answer ({story}): start it again, or the loss of one more may stop every write"
        return
    if isinstance(status, BaseException):
        raise status
    if not status.leader:
        yield "has no leader: it is cut off from the other members, or they are no majority"
    for error in status.errors:
        yield f"raises an alarm ({error[:200]}){': ' + MAKE_ROOM if NO_SPACE in error else ''}"
    quota = status.db_size_quota
    if quota and status.db_size > QUOTA_SHARE * quota and not any(NO_SPACE in each for each in status.errors):
        yield f"has used {status.db_size / quota:.0%} of its space, and takes no writes once it is full: {MAKE_ROOM}"
