"""Metrics of the services that this node balances."""

from collections.abc import Iterator, Mapping

from mandor.agent.traffic import TrafficKeeper
from mandor.errors import MandorError
from mandor.lib.metrics import Family, Values, counter, gauge
from mandor.network.base import FrontendKey, Traffic

FRONTENDS_MOST = 1000
"""Ports of services with metrics of their own, those with the most connections; the others are added up."""
OTHERS = FrontendKey("", "others", "")
LABELS = ("namespace", "service", "port")


async def traffic_families(keeper: TrafficKeeper) -> list[Family]:
    """Return the counters of the data path, and the states of checks of external addresses."""
    try:
        counted = bounded(await keeper.traffic())
    except (MandorError, OSError):
        counted = {}  # The data path is restarted; the next reading has the counters.
    states = {(state,): float(count) for state, count in keeper.checks.counts().items()}
    addresses = gauge(
        "mandor_service_external_addresses",
        "External addresses of services, by result of their check.",
        states,
        "state",
    )
    return [*_counter_families(counted), addresses]


def bounded(traffic: Mapping[FrontendKey, Traffic]) -> dict[FrontendKey, Traffic]:
    """Return the counters of at most `FRONTENDS_MOST` frontends, and the sum of the others."""
    ordered = sorted(traffic, key=lambda key: (-traffic[key].connections, key))
    found = {key: traffic[key] for key in ordered[:FRONTENDS_MOST]}
    if rest := ordered[FRONTENDS_MOST:]:
        found[OTHERS] = Traffic(*map(sum, zip(*(traffic[key] for key in rest), strict=True)))
    return found


def _counter_families(counted: Mapping[FrontendKey, Traffic]) -> Iterator[Family]:
    def of(field: str) -> dict[Values, float]:
        return {tuple(key): float(getattr(each, field)) for key, each in counted.items()}

    yield counter(
        "mandor_service_connections_total",
        "Connections and UDP flows from this node to a port of a service.",
        of("connections"),
        *LABELS,
    )
    yield counter(
        "mandor_service_sent_bytes_total",
        "Bytes from clients on this node to endpoints of the service.",
        of("sent_bytes"),
        *LABELS,
    )
    yield counter(
        "mandor_service_received_bytes_total",
        "Bytes from endpoints of the service to clients on this node.",
        of("received_bytes"),
        *LABELS,
    )
    yield counter(
        "mandor_service_failures_total",
        "Connections for which no endpoint answered.",
        of("failures"),
        *LABELS,
    )
