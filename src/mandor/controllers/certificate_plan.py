"""Decides which hosts of routes need a certificate by ACME, and when an order is tried again: pure."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from mandor.acme.base import CONNECTION, RATE_LIMITED, SERVER
from mandor.lib.delay import Delay
from mandor.model.meta import NAME_MOST
from mandor.model.route import TLS_AUTO, Route, RouteCertificate
from mandor.model.secret import IssuedCertificate, Secret

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Values of a secret with a certificate."""
NEXT_KEY, NEXT_ORDER = "next.key", "next.order"
"""Values of the secret while an order is open: the private key and the URL of the order."""
RENEWAL_SHARE = 2 / 3
"""Share of the lifetime after which a certificate is renewed, unless the authority suggests a time."""
RECHECK_SECONDS = 86_400.0
"""Longest time between two looks at a host."""
UPGRADE_SECONDS = 60.0
"""Seconds between two looks while servers are being upgraded."""
KEPT_SECONDS = 30 * 86_400.0
"""Time after its expiry for which the certificate of a host without routes is kept."""

AFTER_SILENCE = Delay(5.0, 600.0)
"""Delays after the authority could not be reached or failed."""
AFTER_REJECTION = Delay(60.0, 6 * 3600.0)
"""Delays after a challenge failed: authorities allow few failures per hour."""
AFTER_LIMIT = Delay(900.0, 86_400.0)
"""Delays after a rate limit, if the authority names no time."""
AFTER_ISSUE_SECONDS = 600.0
"""Delay after a certificate was issued: a server with a wrong clock does not order one after the other."""
GIVEN_UP_SECONDS = 86_400.0
"""Delay after a problem that a repetition does not solve."""
LIMIT_SECONDS_MOST = 7 * 86_400.0
HOPELESS = frozenset({"rejectedIdentifier", "unsupportedIdentifier", "badCSR", "badPublicKey"})
MESSAGE_MOST = 600

NO_ACCOUNT = "the cluster has no ACME account: start the servers with `--acme-directory URL`, or name a secret in `tls`"
OLD_SERVERS = "certificates are ordered once all servers have the version of this one: upgrade the other servers"
ORDERED_RECENTLY = "a certificate was issued in the last ten minutes, and its secret is gone: the next order follows"
WILDCARD = (
    "a certificate for a wildcard needs a DNS challenge, which is not supported: name a secret with a certificate in "
    "`tls`, or use one route per host"
)


class HostKey(NamedTuple):
    """A host within a namespace: what one certificate is for."""

    namespace: str
    host: str


@dataclass(frozen=True, slots=True)
class HostView:
    """A host, as the mirrors and the authority show it."""

    key: HostKey
    routes: Sequence[Route]
    """Routes of the namespace with this host."""
    others: Sequence[Route] = ()
    """Routes of other namespaces with this host."""
    secret: Secret | None = None
    """The secret with the name that the certificate has."""
    window: tuple[float, float] | None = None
    """Time in which the authority suggests to renew the certificate; None: it suggests none."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next step for a host."""

    order: bool = False
    """Whether a certificate is to be ordered."""
    message: str = ""
    """Why there is no certificate, or no new one."""
    again_at: float | None = None
    """Time of the next look; None: when something changes."""
    delete: bool = False
    """Whether the secret is to be deleted."""


def secret_name(host: str) -> str:
    """Return the name of the secret with the certificate of a host."""
    name = f"tls-{host}"
    if len(name) <= NAME_MOST:
        return name
    digest = hashlib.sha256(host.encode()).hexdigest()[:10]
    return f"{name[: NAME_MOST - 11].rstrip('-.')}-{digest}"


def certified(routes: Iterable[Route]) -> list[Route]:
    """Return the routes that use a certificate by ACME, and that no older route excludes."""
    return [each for each in routes if each.spec.certificate == TLS_AUTO and each.spec.host and _accepted(each)]


def issued_of(view: HostView) -> IssuedCertificate | None:
    """Return the certificate that has been issued for the host."""
    issued = view.secret.status.issued if view.secret is not None else None
    return issued if issued is not None and issued.host == view.key.host and issued.not_after else None


def decide(view: HostView, *, now: float, account: bool, upgraded: bool = True) -> Step:
    """Return the next step. `account`: the cluster has an ACME account. `upgraded`: all servers know the fields."""
    routes, issued = certified(view.routes), issued_of(view)
    if not routes:
        return _unused(view, now)
    if view.key.host.startswith("*."):
        return Step(message=WILDCARD)
    if _belongs_elsewhere(routes, view.others):
        return Step(message=f"another namespace has an older route for the host {view.key.host}")
    if view.secret is not None and view.secret.status.issued is None:
        name = view.secret.meta.name
        message = f"a user wrote the secret {name}, which is not overwritten: delete it, or name it in `tls`"
        return Step(message=message)
    due_at = renewal_at(issued, view.window) if issued is not None else now
    if due_at > now:
        return Step(again_at=min(due_at, now + RECHECK_SECONDS))
    if not account:
        return Step(message=NO_ACCOUNT)
    if not upgraded:
        return Step(message=OLD_SERVERS, again_at=now + UPGRADE_SECONDS)
    former = _recorded(routes)
    if former is not None and former.retry_at > now:
        message = former.message or ("" if issued is not None else ORDERED_RECENTLY)
        return Step(message=message, again_at=min(former.retry_at, now + RECHECK_SECONDS))
    return Step(order=True)


def _unused(view: HostView, now: float) -> Step:
    """Return the step for a host without routes: its certificate is kept in case that the routes come back."""
    issued = view.secret.status.issued if view.secret is not None else None
    if issued is None or view.routes:
        return Step()
    delete_at = issued.not_after + KEPT_SECONDS if issued.not_after else now
    if delete_at <= now:
        return Step(delete=True)
    return Step(again_at=min(delete_at, now + RECHECK_SECONDS))


def renewal_at(issued: IssuedCertificate, window: tuple[float, float] | None) -> float:
    """Return the time of renewal, spread over the hosts; never later than after 2/3 of the lifetime, unless the
    authority suggests it."""
    share = int.from_bytes(hashlib.sha256(issued.host.encode()).digest()[:4], "big") / 2**32
    if window is not None:
        start, end = window
        return min(start + share * (end - start), issued.not_after)
    lifetime = issued.not_after - issued.not_before
    return issued.not_before + lifetime * RENEWAL_SHARE * (1 - 0.05 * share)


def after_failure(
    routes: Iterable[Route], type_: str, detail: str, retry_seconds: float | None, now: float
) -> tuple[int, float, str]:
    """Return the number of failures, the time of the next order, and the message."""
    former = _recorded(routes)
    failures = (former.failures if former is not None else 0) + 1
    if type_ in {CONNECTION, SERVER}:
        pause, what = AFTER_SILENCE.after(failures), "the certificate authority cannot be used"
    elif type_ == RATE_LIMITED:
        pause, what = AFTER_LIMIT.after(failures), "the certificate authority allows no order now"
    elif type_ in HOPELESS:
        pause, what = GIVEN_UP_SECONDS, f"the certificate authority issues no certificate for this host ({type_})"
    else:
        pause, what = AFTER_REJECTION.after(failures), f"the order failed ({type_})"
    if retry_seconds is not None:
        pause = (
            max(min(retry_seconds, LIMIT_SECONDS_MOST), 1.0)
            if type_ == RATE_LIMITED
            else max(pause, min(retry_seconds, GIVEN_UP_SECONDS))
        )
    return failures, now + pause, f"{what}: {detail}"[:MESSAGE_MOST]


def _recorded(routes: Iterable[Route]) -> RouteCertificate | None:
    """Return the certificate state with the most failures: the routes of a host share one order."""
    found = [each.status.certificate for each in routes if each.status.certificate is not None]
    return max(found, key=lambda each: (each.retry_at, each.failures), default=None)


def with_state(route: Route, wanted: RouteCertificate, challenges: dict[str, str]) -> Route:
    """Return the route with the state of its certificate; without any if it uses none by ACME."""
    uses = route.spec.certificate == TLS_AUTO and bool(route.spec.host)
    certificate = wanted if uses else None
    tokens = challenges if uses and _accepted(route) else {}
    if route.status.certificate == certificate and route.status.challenges == tokens:
        return route
    return route.changed(status=replace(route.status, certificate=certificate, challenges=tokens))


def waiting_state(view: HostView, message: str, now: float) -> RouteCertificate:
    """Return the state while no order is made; failures count until the next order."""
    former = _recorded(view.routes)
    if former is None or former.retry_at <= now:
        return current_state(view, message)
    return current_state(view, message, former.failures, former.retry_at)


def current_state(view: HostView, message: str = "", failures: int = 0, retry_at: float = 0.0) -> RouteCertificate:
    """Return the state of the certificate of a host."""
    issued = issued_of(view)
    found = RouteCertificate(message=message, failures=failures, retry_at=retry_at)
    if issued is None or view.secret is None:
        return found
    return replace(found, secret=view.secret.meta.name, not_after=issued.not_after)


def _accepted(route: Route) -> bool:
    condition = route.status.conditions.get("Accepted")
    return condition is None or condition.ok


def _belongs_elsewhere(routes: Sequence[Route], others: Sequence[Route]) -> bool:
    """Return whether the oldest route of the host is in another namespace."""
    rivals = [each for each in others if _accepted(each)]
    return bool(rivals) and min(map(_age, rivals)) < min(map(_age, routes))


def _age(route: Route) -> tuple[float, str, str]:
    return route.meta.created_at, route.meta.namespace, route.meta.name
