"""RouteController: creates the routes that workloads declare with `expose`, and writes the conditions of all routes."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.route_plan import SecretState, oldest_of, plan_routes, wanted_routes, with_conditions
from mandor.controllers.writer import Writer
from mandor.errors import Conflict
from mandor.lib.certificate_check import CertificateState, check_certificate
from mandor.lib.clock import Clock
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.meta import Key, Object
from mandor.model.route import TLS_CERTIFICATE, TLS_KEY, Route
from mandor.model.secret import Secret
from mandor.model.service import Service
from mandor.model.workload import Workload
from mandor.network.gateway.routing import Requests, requests_of
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

AGAIN_SECONDS = 0.1
"""Seconds until a plan that met a conflict is made again."""
EXPIRY_SECONDS = 3600.0
"""Seconds between checks whether a certificate has expired."""
CHECKED_MOST = 10_000
"""Remembered results of checks of certificates."""


class RouteController(Controller[Key]):
    """A key is that of a workload with `expose`, or of a route."""

    name: ClassVar[str] = "route"
    watches: ClassVar[tuple[str, ...]] = (Workload.kind, Route.kind, Service.kind, Secret.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, sealer: Sealer | None = None) -> None:
        """`sealer`: opens secrets; None: certificates are not checked."""
        self._store, self._clock, self._recorder, self._sealer = store, clock, recorder, sealer
        self._by_namespace: Grouped[str, Route] = Grouped(_namespace)
        self._by_requests: Grouped[Requests, Route] = Grouped(lambda each: requests_of(each.spec))
        self._checked: dict[tuple[str, str], CertificateState] = {}
        """Results by content id of the secret and host."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after, value = change.before, change.after, change.value
        if isinstance(value, Route):
            return self._observe_route(
                before if isinstance(before, Route) else None, after if isinstance(after, Route) else None
            )
        if isinstance(value, Service):
            if change.status_only:
                return ()
            return [
                each.key
                for each in self._by_namespace.of(value.meta.namespace)
                if any(target.service == value.meta.name for target in each.spec.to)
            ]
        if isinstance(value, Secret):
            return [each.key for each in self._by_namespace.of(value.meta.namespace) if each.secret == value.meta.name]
        if change.status_only:
            return ()
        specs = [each.spec.services for each in (before, after) if isinstance(each, Workload)]
        return (value.key,) if any(each.expose is not None for services in specs for each in services) else ()

    def _observe_route(self, before: Route | None, after: Route | None) -> list[Key]:
        self._by_namespace.update(before, after)
        self._by_requests.update(before, after)
        value = after or before
        assert value is not None
        requests = {requests_of(each.spec) for each in (before, after) if each is not None}
        keys = {each.key: None for group in sorted(requests, key=repr) for each in self._by_requests.of(group)}
        # The owner recreates a deleted route; a workload whose name was taken may have it now.
        if value.status.owner:
            keys[Key(Workload.kind, value.meta.namespace, value.status.owner)] = None
        elif after is None:
            keys |= dict.fromkeys(self._declaring(value))
        return list(keys)

    def _declaring(self, route: Route) -> list[Key]:
        """Return the workloads of the namespace that declare a route of this name."""
        return [
            each.key
            for each in self._mirrors[Workload.kind].items()
            if isinstance(each, Workload)
            and each.meta.namespace == route.meta.namespace
            and route.meta.name in wanted_routes(each)
        ]

    def subject(self, key: Key) -> Object | None:
        return self._mirrors[key.kind].get(key)

    async def reconcile(self, key: Key) -> float | None:
        if key.kind == Route.kind:
            return await self._judge(key)
        workload = self._mirrors[Workload.kind].get(key)
        existing = self._by_namespace.of(key.namespace)
        draft = plan_routes(key, workload if isinstance(workload, Workload) else None, existing)
        try:
            await self._writer.commit(draft.writes)
        except Conflict:
            return AGAIN_SECONDS
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return None

    async def _judge(self, key: Key) -> float | None:
        route = self._mirrors[Route.kind].get(key)
        if not isinstance(route, Route):
            return None
        rivals = self._by_requests.of(requests_of(route.spec))
        found = [
            self._mirrors[Service.kind].get(Key(Service.kind, key.namespace, each.service)) for each in route.spec.to
        ]
        services = {each.meta.name: each for each in found if isinstance(each, Service)}
        changed = with_conditions(
            route, oldest_of(rivals or [route]), services, self._secret(route), now=self._clock.now()
        )
        try:
            await self._writer.commit([Put(changed)] if changed is not route else [])
        except Conflict:
            return AGAIN_SECONDS
        return EXPIRY_SECONDS if changed.status.secret_id else None

    def _secret(self, route: Route) -> SecretState | None:
        secret = self._mirrors[Secret.kind].get(Key(Secret.kind, route.meta.namespace, route.secret or "-"))
        if not isinstance(secret, Secret) or not route.secret:
            return None
        if self._sealer is None:
            return SecretState(secret.content_id, "this server has no key for secrets", "Sealed")
        known = secret.content_id, route.spec.host
        state = self._checked.get(known)
        if state is None:
            if len(self._checked) >= CHECKED_MOST:
                self._checked.clear()
            state = self._checked[known] = self._check(self._sealer, secret, route.spec.host)
        return SecretState(secret.content_id, state.problem, state.reason, state.not_after)

    def _check(self, sealer: Sealer, secret: Secret, host: str) -> CertificateState:
        texts = []
        for name in (TLS_CERTIFICATE, TLS_KEY):
            if name not in secret.spec.sealed:
                return CertificateState(reason="KeyMissing", problem=f"it has no key `{name}`")
            try:
                texts.append(sealer.open(secret.spec.sealed[name], f"{secret.key} {name}"))
            except Unsealable:
                return CertificateState(reason="Sealed", problem="its values cannot be decrypted")
        return check_certificate(texts[0], texts[1], host)


def _namespace(value: Route) -> str:
    return value.meta.namespace
