"""What can be set about the API server, each with its meaning."""

import math

from msgspec import Struct

MIB = 1024 * 1024


class ApiSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = "http://127.0.0.1:8080"
    """The URL under which agents reach this very server: sessions are dialled back to it."""
    tokens_required: bool = True
    """Without tokens only this machine is served, and no web page."""
    line_bytes_most: int = 16 * 1024
    """Of the address in a request line."""
    head_bytes_most: int = 64 * 1024
    """Of all headers of a request."""
    headers_most: int = 100
    head_seconds_most: float = 10.0
    """From the first byte of a request, or from the connection, until its headers are complete; a TLS handshake has as
    long."""
    idle_seconds_most: float = 30.0
    """A connection without a request is closed."""
    connections_most: int = 50_000
    connections_each: int = 500
    """From one address, as long as they have shown no valid token."""
    body_bytes_most: int = 4 * MIB
    manifest_bytes_most: int = 1 * MIB
    image_bytes_most: int = 32 * 1024 * MIB
    """Of one image that passes through to a node; nothing of it is kept here."""
    body_seconds_most: float = 60.0
    """A body that has not come by then is not waited for."""
    list_default: int = 500
    list_most: int = 1000
    watches_most: int = 20_000
    """Watches, logs and other answers that go on."""
    watches_each: int = 2_000
    """Of one identity."""
    sessions_most: int = 256
    sessions_each: int = 64
    """Of one identity."""
    dial_seconds: float = 30.0
    """An agent that has not dialled back by then is not coming."""
    session_seconds_most: float = 24 * 3600.0
    session_idle_seconds: float = 3600.0
    """A session without a byte in either direction ends."""
    writes_per_second: float = 200.0
    """Of one identity, once its burst is used up: audits and events cost room in the store."""
    writes_burst: int = 2000
    requests_per_second: float = 5_000.0
    """Of one identity, once its burst is used up; what fewer send at once is shared fairly, whatever this is."""
    requests_burst: int = 20_000
    beats_per_second: float = 10.0
    """Of one node, which beats every ten seconds: more is a mistake, and heartbeats go before everything else."""
    beats_burst: int = 100
    strangers_per_second: float = 50.0
    """From one address: requests without a token, or with one that nobody knows."""
    strangers_burst: int = 500
    credential_age_seconds: float = math.inf
    """At this age at the latest an agent renews its node's credential by itself."""
    identity_issuer: str = ""
    """The `iss` of workload identities; empty: `address`."""
    login_scopes: tuple[str, ...] = ()
    """The scopes that `mandor login` asks the OpenID provider for."""
    engines: tuple[str, ...] = ()
    """Engines that exist although this server does not have them installed."""
