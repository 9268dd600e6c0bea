"""CertificateController: orders and renews the certificates of routes with `tls: auto`."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

from mandor.acme.base import CONNECTION, AcmeOrder, AcmeProblem, CertificateIssuer, RenewalWindow
from mandor.controllers.base import Controller, Grouped
from mandor.controllers.certificate_plan import (
    AFTER_ISSUE_SECONDS,
    CERTIFICATE,
    KEY,
    NEXT_KEY,
    NEXT_ORDER,
    HostKey,
    HostView,
    after_failure,
    certified,
    current_state,
    decide,
    issued_of,
    secret_name,
    waiting_state,
    with_state,
)
from mandor.errors import Conflict, Unavailable
from mandor.lib import x509
from mandor.lib.clock import Clock
from mandor.lib.metrics import Counts, Family, counter, gauge
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.meta import Key, Meta, Object
from mandor.model.route import Route, RouteCertificate
from mandor.model.secret import IssuedCertificate, Secret, SecretSpec, SecretStatus, about_value
from mandor.store.base import Change, Delete, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

ORDER_SECONDS = 600.0
"""Time limit of one order."""
SERVED_SECONDS, UNSEEN_SECONDS, LOOK_SECONDS = 20.0, 3.0, 0.25
"""Seconds in which gateways have to serve a challenge before the authority is asked to check it; the same if the host
cannot be reached from this server; and seconds between two looks."""
TRIES = 5
SHOWN_SECONDS = 30.0


class CertificateController(Controller[HostKey]):
    """A key is a host within a namespace. Several orders run at the same time."""

    name: ClassVar[str] = "certificate"
    watches: ClassVar[tuple[str, ...]] = (Route.kind, Secret.kind)
    workers: ClassVar[int] = 8

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        issuer: CertificateIssuer | None = None,
        sealer: Sealer | None = None,
        *,
        upgraded: Callable[[], bool] = lambda: True,
    ) -> None:
        """`issuer`: the account at the certificate authority; None: there is none.

        `upgraded`: tells whether all servers can read what this controller writes.
        """
        self._store, self._clock, self._recorder = store, clock, recorder
        self._issuer, self._sealer, self._upgraded = issuer, sealer, upgraded
        self._by_host: Grouped[str, Route] = Grouped(lambda route: route.spec.host)
        self._windows: dict[HostKey, tuple[float, float, RenewalWindow | None]] = {}
        """Suggested time of renewal: the expiry of its certificate, the time until which it holds, the window."""
        self._orders = Counts()
        self._secrets: Mirror | None = None

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._routes, self._secrets = mirrors[Route.kind], mirrors[Secret.kind]

    def observe(self, change: Change) -> Iterable[HostKey]:
        before, after = change.before, change.after
        if isinstance(change.value, Secret):
            return self._of_secret(change.value)
        old = before if isinstance(before, Route) else None
        new = after if isinstance(after, Route) else None
        self._by_host.update(old, new)
        hosts = {each.spec.host for each in (old, new) if each is not None}
        # A route of one namespace can free the host for another one.
        keys = {HostKey(route.meta.namespace, host) for host in hosts if host for route in self._by_host.of(host)}
        return keys | {HostKey(each.meta.namespace, each.spec.host) for each in (old, new) if each is not None}

    def _of_secret(self, secret: Secret) -> list[HostKey]:
        namespace, issued = secret.meta.namespace, secret.status.issued
        if issued is not None:
            return [HostKey(namespace, issued.host)]
        if not secret.meta.name.startswith("tls-"):
            return []
        hosts = {each.spec.host for each in self._in(namespace) if secret_name(each.spec.host) == secret.meta.name}
        return [HostKey(namespace, host) for host in hosts]

    def _in(self, namespace: str) -> list[Route]:
        found = self._routes.items()
        return [each for each in found if isinstance(each, Route) and each.meta.namespace == namespace]

    def subject(self, key: HostKey) -> Object | None:
        return next((each for each in self._by_host.of(key.host) if each.meta.namespace == key.namespace), None)

    async def reconcile(self, key: HostKey) -> float | None:
        view = self._view(key)
        view = replace(view, window=await self._window(view))
        now, account = self._clock.now(), self._issuer is not None
        step = decide(view, now=now, account=account, upgraded=self._upgraded())
        if step.delete and view.secret is not None:
            await self._store.commit(Delete(view.secret.key, view.secret.meta.version))
            return None
        if not step.order:
            await self._write(key, waiting_state(view, step.message, now))
            return None if step.again_at is None else max(1.0, step.again_at - self._clock.now())
        await self._order(view)
        return 0.0

    def _view(self, key: HostKey) -> HostView:
        routes = self._by_host.of(key.host)
        assert self._secrets is not None
        secret = self._secrets.get(Key(Secret.kind, key.namespace, secret_name(key.host))) if key.host else None
        return HostView(
            key,
            [each for each in routes if each.meta.namespace == key.namespace],
            [each for each in routes if each.meta.namespace != key.namespace] if key.host else [],
            secret if isinstance(secret, Secret) else None,
        )

    # Renewal information.

    async def _window(self, view: HostView) -> tuple[float, float] | None:
        issued = issued_of(view)
        if issued is None or self._issuer is None or view.secret is None or not certified(view.routes):
            self._windows.pop(view.key, None)
            return None
        now = self._clock.now()
        ends_at, fresh_until, window = self._windows.get(view.key, (0.0, 0.0, None))
        if ends_at != issued.not_after or fresh_until <= now:
            pause = 6 * 3600.0
            try:
                window = await self._issuer.window(self._open(view.secret).get(CERTIFICATE, ""))
            except (AcmeProblem, ValueError) as problem:
                log.info("cannot read when to renew the certificate of %s: %s", view.key.host, problem)
                window = window if ends_at == issued.not_after else None
            pause = window.check_seconds if window is not None else pause
            self._windows[view.key] = (issued.not_after, now + pause, window)
        return (window.start, window.end) if window is not None else None

    # Orders.

    async def _order(self, view: HostView) -> None:
        key, host = view.key, view.key.host
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                issued = await self._issue(view)
        except AcmeProblem as problem:
            self._orders["failed",] += 1
            await self._failed(view, problem)
            return
        except TimeoutError:
            self._orders["failed",] += 1
            await self._failed(view, AcmeProblem(CONNECTION, f"the order took more than {ORDER_SECONDS:g} s"))
            return
        self._orders["issued",] += 1
        self._windows.pop(key, None)
        retry_at = self._clock.now() + AFTER_ISSUE_SECONDS
        await self._write(key, current_state(self._view(key), retry_at=retry_at))
        until = f"{_date(issued.not_after)}, secret {secret_name(host)}"
        for route in certified(self._view(key).routes):
            self._recorder.note(route, "CertificateIssued", f"issued a certificate for {host}, valid until {until}")

    async def _failed(self, view: HostView, problem: AcmeProblem) -> None:
        now = self._clock.now()
        # The mirror shows the number of failures before this order.
        routes = self._view(view.key).routes
        failures, retry_at, message = after_failure(routes, problem.type, problem.detail, problem.retry_seconds, now)
        log.warning("no certificate for %s in namespace %s: %s", view.key.host, view.key.namespace, message)
        await self._write(view.key, current_state(self._view(view.key), message, failures, retry_at))
        for route in certified(routes):
            self._recorder.note(
                route, "CertificateFailed", f"no certificate for {view.key.host}: {message}", type="warning"
            )

    async def _issue(self, view: HostView) -> IssuedCertificate:
        assert self._issuer is not None
        key = view.key
        values = self._open(view.secret) if view.secret is not None else {}
        known = values.get(NEXT_ORDER, "") if NEXT_KEY in values else ""
        order = await self._issuer.order(key.host, known, values.get(CERTIFICATE, ""))
        if order.url != known:
            # Stored before the order is completed: another leader continues this order instead of making a new one.
            values = {name: text for name, text in values.items() if name in {CERTIFICATE, KEY}}
            values |= {NEXT_KEY: x509.new_key(), NEXT_ORDER: order.url}
            issued = issued_of(view) or IssuedCertificate(host=key.host)
            await self._store_values(view.secret, key, values, issued, counted=False)
        if order.status == "pending":
            order = await self._validate(view, order)
        private = values[NEXT_KEY]
        chain = await self._issuer.complete(order, x509.make_request(private, hosts=[key.host]))
        issued = _checked(chain, private, key.host, self._clock.now())
        secret = self._view(key).secret
        await self._store_values(secret, key, {CERTIFICATE: chain, KEY: private}, issued, counted=True)
        return issued

    async def _validate(self, view: HostView, order: AcmeOrder) -> AcmeOrder:
        assert self._issuer is not None
        key, tokens = view.key, {each.token: each.answer for each in order.challenges}
        former = [each.status.certificate for each in view.routes if each.status.certificate is not None]
        state = next(iter(former), current_state(view))
        # The challenges are removed with the next write, after the order. A leader that takes over needs them.
        await self._write(key, state, tokens)
        await self._served(key.host, order)
        return await self._issuer.validate(order)

    async def _served(self, host: str, order: AcmeOrder) -> None:
        """Wait until the host serves the challenges. If that cannot be seen, for example because the cluster cannot
        reach its own public addresses, the authority checks them all the same."""
        assert self._issuer is not None
        start = self._clock.monotonic()
        for challenge in order.challenges:
            while (seen := await self._issuer.serves(host, challenge)) is not True:
                passed = self._clock.monotonic() - start
                if passed >= (UNSEEN_SECONDS if seen is None else SERVED_SECONDS):
                    return
                await self._clock.sleep(LOOK_SECONDS)

    # The store.

    def _open(self, secret: Secret) -> dict[str, str]:
        if self._sealer is None:
            raise Unavailable("this server has no key for secrets", hint="start it with --secrets-key FILE")
        try:
            return {
                name: self._sealer.open(text, about_value(secret, name)) for name, text in secret.spec.sealed.items()
            }
        except Unsealable as error:
            raise Unavailable(str(error), hint="this server lacks a key that the cluster uses") from error

    async def _store_values(
        self, former: Secret | None, key: HostKey, values: dict[str, str], issued: IssuedCertificate, *, counted: bool
    ) -> None:
        """Write the secret of a host. `counted`: the certificate differs, so that its users load it again."""
        if self._sealer is None:
            raise Unavailable("this server has no key for secrets", hint="start it with --secrets-key FILE")
        secret = former or Secret(meta=Meta(name=secret_name(key.host), namespace=key.namespace))
        sealed = {name: self._sealer.seal(text, about_value(secret, name)) for name, text in values.items()}
        status = SecretStatus(changes=secret.status.changes + (counted and former is not None), issued=issued)
        revision = await self._store.commit(Put(secret.changed(spec=SecretSpec(sealed=sealed), status=status)))
        assert self._secrets is not None
        await _shown(self._secrets, revision)

    async def _write(self, key: HostKey, state: RouteCertificate, challenges: dict[str, str] | None = None) -> None:
        """Write the state of the certificate into the routes of a host; other controllers may write them, too."""
        for route in self._view(key).routes:
            current: Object | None = route
            for _ in range(TRIES):
                if not isinstance(current, Route) or current.spec.host != key.host:
                    break
                changed = with_state(current, state, challenges or {})
                if changed is current:
                    break
                try:
                    await _shown(self._routes, await self._store.commit(Put(changed)))
                    break
                except Conflict as error:
                    if error.facts.get("key") not in {None, current.key}:
                        raise  # this server leads no longer
                    current = await self._store.get(route.key)

    # Metrics.

    def families(self) -> Iterator[Family]:
        now = self._clock.now()
        secrets = self._secrets.items() if self._secrets is not None else ()
        left = {
            (each.meta.namespace, each.status.issued.host): each.status.issued.not_after - now
            for each in secrets
            if isinstance(each, Secret) and each.status.issued is not None and each.status.issued.not_after
        }
        yield gauge(
            "mandor_route_certificate_seconds_left",
            "Seconds until a certificate by ACME expires; on the server that leads the controllers.",
            left,
            "namespace",
            "host",
        )
        yield counter(
            "mandor_acme_orders_total",
            "Orders of certificates by ACME, by result: issued or failed.",
            self._orders,
            "result",
        )


def _checked(chain: str, private: str, host: str, now: float) -> IssuedCertificate:
    """Return what was issued; raise `AcmeProblem` unless it is a certificate of this key for this host."""
    try:
        info = x509.read(x509.split_bundle(chain)[0])
    except (ValueError, IndexError):
        raise AcmeProblem("malformed", "the authority sent no certificate") from None
    if info.key != x509.key_id(x509.public_key(private)):
        raise AcmeProblem("malformed", "the authority sent a certificate of another key")
    if host not in info.hosts or info.ends_at <= now:
        raise AcmeProblem("malformed", f"the authority sent a certificate that is not valid for {host}")
    return IssuedCertificate(host=host, not_before=info.starts_at, not_after=info.ends_at)


async def _shown(mirror: Mirror, revision: int) -> None:
    """Wait until the mirror shows a commit, so that the next plan sees it."""
    try:
        async with asyncio.timeout(SHOWN_SECONDS):
            await mirror.reached(revision)
    except TimeoutError:
        raise Unavailable(f"the mirror did not show the last commit within {SHOWN_SECONDS:g} s") from None


def _date(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
