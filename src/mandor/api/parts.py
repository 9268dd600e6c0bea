"""ApiParts: the objects that operations use, assembled by the composition root."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from mandor.api.audit import Auditor
from mandor.api.auth import Auth
from mandor.api.certificates import CertificateAuthority
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.fair_queue import FairQueue, Lane
from mandor.api.http.rate_limiter import RateLimiter
from mandor.api.http.request_admission import RequestAdmission
from mandor.api.http.request_metrics import RequestMetrics
from mandor.api.identities import IdentityKeys
from mandor.api.order_dependencies import OrderDependencyCache
from mandor.api.revocation import Revocation
from mandor.api.scheduling import ForecastRunner, Scheduling
from mandor.api.secret_keys import Keys
from mandor.api.sessions import Sessions
from mandor.api.settings import ApiSettings
from mandor.api.streams import Streams
from mandor.api.tasks import VmRequestIntake
from mandor.errors import Unavailable
from mandor.lib.clock import Clock
from mandor.lib.egress import STRICT, Egress
from mandor.lib.metrics import Metrics
from mandor.lib.paced_queue import PacedQueue
from mandor.lib.sealing import Sealer
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.features import FEATURES
from mandor.model.meta import Object
from mandor.model.receiver import Receiver
from mandor.model.table_report import TableReport
from mandor.store.base import Store
from mandor.telemetry.tracer import Tracer

NODES_EACH_PASS = 32
"""Requests of nodes that start per pass of the event loop."""
NODES_WHILE_PLACING = 4
"""The same while instances wait for the scheduler of this process."""
PATIENCE_SECONDS = 10.0
"""Longest wait of a request after which requests of nodes are no longer slowed down: agents would time out."""


class Notes(Protocol):
    """Records events: a Recorder."""

    def note(self, about: Object, reason: str, message: str) -> None: ...


async def no_table() -> TableReport | None:
    return None


async def no_receiver(receiver: Receiver) -> str:
    raise Unavailable("this server cannot send messages")


@dataclass(frozen=True, slots=True)
class ApiParts:
    store: Store
    clock: Clock
    heartbeats: Heartbeats
    settings: ApiSettings = field(default_factory=ApiSettings)
    recorder: Notes | None = None
    """Records events about nodes that join; None: no events."""
    compare_table: Callable[[], Awaitable[TableReport | None]] = no_table
    """Compares the scheduler's table with the store; returns None if no scheduler leads in this process."""
    auth: Auth = field(default=None)  # type: ignore[assignment]
    """Authenticates callers; made from the store's tokens unless given."""
    authority: CertificateAuthority | None = None
    """Issues certificates; None: this server cannot."""
    sealer: Sealer | None = None
    """Seals and opens secrets; None: this server has no key for them."""
    keys: Keys | None = None
    """Rotates the keys of secrets; None: this server cannot."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    """Configuration of the scheduler for forecasts."""
    spare_clusters: frozenset[str] = frozenset()
    """Names of clusters with a pipeline that creates spare machines."""
    try_receiver: Callable[[Receiver], Awaitable[str]] = no_receiver
    """Sends a test message; returns the answer of the receiver."""
    egress: Egress = STRICT
    """Policy for hosts that objects may name."""
    files: SecretFiles = NO_FILES
    """Files that objects may name."""
    placing: Callable[[], bool] = bool
    """Returns whether instances wait for the scheduler of this process, which has priority over requests of nodes."""
    simulate: Callable[[str, int], Awaitable[tuple[bytes, str]]] | None = None
    """Runs a scenario with a number of seeds; returns the report as JSON and as a page. None: this server cannot."""
    metrics: Callable[[], Awaitable[bytes]] = Metrics().text
    """Returns the metrics of this process in Prometheus' text format."""
    request_metrics: RequestMetrics = field(default_factory=RequestMetrics)
    everywhere: Callable[[], frozenset[str]] = lambda: frozenset(FEATURES)
    """Returns the features that every server of the cluster supports."""
    tracer: Tracer | None = None
    """Records spans of requests; None: tracing is off."""
    notes: tuple[str, ...] = ()
    """Deviations from the configuration, shown by `/readyz`."""
    troubles: Callable[[], tuple[str, ...]] = tuple
    """Returns current failures that are being retried, shown by `/readyz`."""
    revocation: Revocation = field(init=False)
    identities: IdentityKeys = field(init=False)
    """Signing keys of workload identities."""
    streams: Streams = field(init=False)
    sessions: Sessions = field(init=False)
    forecasts: ForecastRunner = field(init=False)
    write_rates: RateLimiter = field(init=False)
    """Limits the objects that one identity writes per second."""
    request_admission: RequestAdmission = field(init=False)
    vm_requests: VmRequestIntake = field(init=False)
    auditor: Auditor = field(init=False)
    order_dependencies: OrderDependencyCache = field(init=False)
    joining: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while a node joins with a join token."""
    of_nodes: PacedQueue = field(init=False)
    """Limits how many requests of nodes start per pass of the event loop."""

    def __post_init__(self) -> None:
        settings = self.settings
        make = object.__setattr__
        if self.auth is None:
            make(
                self,
                "auth",
                Auth(self.store, self.clock, tokens_required=settings.tokens_required, authority=self.authority),
            )
        make(self, "revocation", Revocation(self.store, self.clock, self.auth))
        make(self, "identities", IdentityKeys(self.store, self.clock, self.sealer))
        make(self, "streams", Streams(settings.watches_most, settings.watches_each, self.revocation))
        make(self, "sessions", Sessions(self.store, self.clock, settings, self.revocation))
        make(self, "of_nodes", PacedQueue(self._nodes_each_pass))
        make(self, "auditor", Auditor(self.clock, self.everywhere))
        make(self, "vm_requests", VmRequestIntake(self.store, self.clock, self.auditor, settings.vm_dedicated))
        make(self, "order_dependencies", OrderDependencyCache(self.store))
        make(self, "request_admission", _request_admission(self.clock, settings))
        others_wait = partial(self.request_admission.others_wait, Lane.FORECAST)
        make(self, "forecasts", ForecastRunner(self.store, self.scheduling, others_wait))
        make(self, "write_rates", RateLimiter(self.clock, settings.writes_per_second, settings.writes_burst))

    def _nodes_each_pass(self) -> int:
        waited = (
            self.request_admission.longest_wait_seconds(Lane.AGENT, Lane.REPORT) if self.placing() else PATIENCE_SECONDS
        )
        return NODES_WHILE_PLACING if waited < PATIENCE_SECONDS else NODES_EACH_PASS


def _request_admission(clock: Clock, settings: ApiSettings) -> RequestAdmission:
    action = "sends more than {:g} requests"
    requests = RateLimiter(clock, settings.requests_per_second, settings.requests_burst, action)
    heartbeats = RateLimiter(clock, settings.beats_per_second, settings.beats_burst, "sends more than {:g} heartbeats")
    unauthenticated = RateLimiter(clock, settings.strangers_per_second, settings.strangers_burst, action)
    return RequestAdmission(FairQueue(), requests, heartbeats, unauthenticated)
