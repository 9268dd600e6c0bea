"""Settings of the API server."""

import math

from msgspec import Struct

from mandor.model.claim import Dedication

MIB = 1024 * 1024


class ApiSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = "http://127.0.0.1:8080"
    """URL under which agents reach this server; they dial sessions back to it."""
    tokens_required: bool = True
    """Whether callers need a token; without tokens only local callers that are no web page are served."""
    line_bytes_most: int = 16 * 1024
    """Bytes of the URL in a request line."""
    head_bytes_most: int = 64 * 1024
    """Bytes of all headers of a request."""
    headers_most: int = 100
    head_seconds_most: float = 10.0
    """Time limit for receiving the headers of a request, and for a TLS handshake."""
    idle_seconds_most: float = 30.0
    """Idle time after which a connection is closed."""
    connections_most: int = 50_000
    connections_each: int = 500
    """Unauthenticated connections from one address."""
    body_bytes_most: int = 4 * MIB
    manifest_bytes_most: int = 1 * MIB
    image_bytes_most: int = 32 * 1024 * MIB
    """Bytes of an image that is loaded into a node; the server streams it and stores nothing."""
    body_seconds_most: float = 60.0
    """Time limit for receiving a body."""
    list_default: int = 500
    list_most: int = 1000
    watches_most: int = 20_000
    """Open watches, log streams and other streaming responses."""
    watches_each: int = 2_000
    """The same for one identity."""
    sessions_most: int = 256
    sessions_each: int = 64
    """Open sessions of one identity."""
    dial_seconds: float = 30.0
    """Time limit for an agent to dial back."""
    session_seconds_most: float = 24 * 3600.0
    session_idle_seconds: float = 3600.0
    """Idle time after which a session ends."""
    writes_per_second: float = 200.0
    """Objects that one identity may write per second after its burst; audit records and events take space."""
    writes_burst: int = 2000
    requests_per_second: float = 5_000.0
    """Requests that one identity may send per second after its burst; requests are also queued fairly."""
    requests_burst: int = 20_000
    beats_per_second: float = 10.0
    """Heartbeats that one node may send per second; agents send one every ten seconds."""
    beats_burst: int = 100
    strangers_per_second: float = 50.0
    """Requests without a valid token that one address may send per second."""
    strangers_burst: int = 500
    vm_dedicated: Dedication = "host"
    """Meaning of `dedicated` in requests for virtual machines."""
    credential_age_seconds: float = math.inf
    """Age at which an agent renews its node's credential by itself."""
    identity_issuer: str = ""
    """The `iss` of workload identities; empty: `address`."""
    login_scopes: tuple[str, ...] = ()
    """The scopes that `mandor login` asks the OpenID provider for."""
    engines: tuple[str, ...] = ()
    """Engines that exist although this server does not have them installed."""
