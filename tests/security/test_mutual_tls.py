"""Attacks on the certificates of nodes and servers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from mandor.agent.http_link import HttpLink
from mandor.agent.journal import Journal
from mandor.agent.link import Heartbeat
from mandor.api.certificates import CertificateAuthority, node_uri
from mandor.client.aio import Client
from mandor.errors import Conflict, Forbidden, Invalid, MandorError, NotFound, Unauthenticated, Unavailable
from mandor.lib import x509
from mandor.lib.clock import SystemClock
from mandor.lib.sealing import Sealer
from mandor.lib.x509 import Pair
from mandor.model.authority import KEY, Authority, AuthoritySpec
from mandor.model.meta import Key
from mandor.store.base import Delete, Put
from mandor.store.memory import MemoryStore
from tests.security.tls_api import CLUSTER, Secure, secure_api

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    async with secure_api(tmp_path) as running:
        yield running


async def joined(secure: Secure, name: str = "n1") -> tuple[HttpLink, Client]:
    link, client = await secure.agent(name, await secure.token("join", "join:first"))
    await link.join()
    return link, client


def forged(secure: Secure, authority: Pair, name: str, *, key: str = "", start: float = 0.0, life: float = DAY) -> Path:
    """A file with a key and a certificate for the node of this name, signed by this authority."""
    key = key or x509.new_key()
    start = start or time.time()
    certificate = x509.issue(authority, x509.public_key(key), name, uri=node_uri(name), now=start, seconds=life)
    path = secure.folder / f"forged-{time.monotonic_ns()}.pem"
    path.write_text(f"{key.strip()}\n{certificate}")
    return path


def issuing(secure: Secure) -> Pair:
    """The authority's own key: what an attacker must never have, and a test needs for wrong certificates."""
    found = secure.authority._issuing
    assert found is not None
    return found


async def sees_itself(client: Client, name: str = "n1") -> bool:
    try:
        return bool(await client.call("GET", f"/v1/nodes/{name}", dict))
    except (Unauthenticated, Unavailable):
        return False


# What a node shows.


async def test_a_node_shows_its_certificate_and_no_secret(secure: Secure) -> None:
    link, client = await joined(secure)
    assert client.token == ""
    assert await sees_itself(client)
    await link.heartbeat(Heartbeat(cluster=CLUSTER))
    assert (await secure.credential("n1")).spec.key


async def test_a_stolen_credential_alone_is_refused_everywhere(secure: Secure) -> None:
    await joined(secure)
    text = Journal(secure.folder / "agent-n1").credential
    thief = await secure.client(text)
    for method, path, body in (
        ("GET", "/v1/nodes/n1", None),
        ("POST", "/v1/nodes/n1/heartbeat", {"cluster": CLUSTER}),
        ("POST", "/v1/nodes/n1/credential", {"secret": "ab" * 32}),
        ("POST", "/v1/nodes/n1/join", {"address": "192.0.2.6"}),
    ):
        with pytest.raises(Unauthenticated):
            await thief.call(method, path, dict, body=body)
    with pytest.raises(MandorError):
        await thief.dial("/v1/sessions/s1")


async def test_a_stolen_credential_gets_no_certificate_for_another_key(secure: Secure) -> None:
    link, client = await joined(secure)
    thief = await secure.client(Journal(secure.folder / "agent-n1").credential)
    csr = x509.make_request(x509.new_key(), "n1")
    for path, body in (("certificate", {"csr": csr}), ("join", {"csr": csr})):
        with pytest.raises(Forbidden, match="another key"):
            await thief.call("POST", f"/v1/nodes/n1/{path}", dict, body=body)
    await link.renew_certificate()
    assert await sees_itself(client), "the node itself gets one"


async def test_a_request_signed_by_another_key_is_refused(secure: Secure) -> None:
    joiner = await secure.client(await secure.token("join", "join:first"))
    good = x509.make_request(x509.new_key(), "n1")
    lines = good.splitlines()
    lines[3] = lines[3][::-1]
    for csr in ("", "no request", "\n".join(lines), good.replace("REQUEST", "CERTIFICATE")):
        if not csr:
            continue
        with pytest.raises(Invalid):
            await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"csr": csr})
    assert await secure.store.get(Key("node", "", "n1")) is None


async def test_a_certificate_of_another_authority_is_refused(secure: Secure) -> None:
    _, client = await joined(secure)
    assert await sees_itself(client)
    own = Journal(secure.folder / "agent-n1").node_key(x509.new_key)
    other = x509.make_authority("Mandor authority", now=time.time(), seconds=DAY)
    foreign = await secure.client(identity=forged(secure, other, "n1", key=own))
    with pytest.raises((Unavailable, Unauthenticated)):
        await foreign.call("GET", "/v1/nodes/n1", dict)


async def test_a_certificate_for_another_key_of_the_right_name_is_refused(secure: Secure) -> None:
    await joined(secure)
    client = await secure.client(identity=forged(secure, issuing(secure), "n1"))
    with pytest.raises(Unauthenticated, match="not for the key in its credential"):
        await client.call("GET", "/v1/nodes/n1", dict)


async def test_a_node_is_itself_and_no_other_node(secure: Secure) -> None:
    _, client = await joined(secure)
    await joined(secure, "n2")
    with pytest.raises(NotFound):
        await client.call("GET", "/v1/nodes/n2", dict)
    with pytest.raises(Forbidden):
        await client.call("POST", "/v1/nodes/n2/heartbeat", dict, body={"cluster": CLUSTER})
    csr = x509.make_request(Journal(secure.folder / "agent-n1").node_key(x509.new_key), "n2")
    for path in ("certificate", "join"):
        with pytest.raises(Forbidden):
            await client.call("POST", f"/v1/nodes/n2/{path}", dict, body={"csr": csr})


async def test_a_request_that_names_another_node_gets_a_certificate_of_the_node_that_asks(secure: Secure) -> None:
    joiner = await secure.client(await secure.token("join", "join:first"))
    csr = x509.make_request(x509.new_key(), "mandor:node:n2")
    answer = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"csr": csr})
    assert x509.read(answer["certificate"]).uris == (node_uri("n1"),)


async def test_an_expired_certificate_is_refused_on_a_connection_that_is_open_too(secure: Secure) -> None:
    _, client = await joined(secure)
    assert await sees_itself(client)
    secure.clock.ahead = DAY + HOUR
    with pytest.raises(Unauthenticated, match="has expired"):
        await client.call("GET", "/v1/nodes/n1", dict)


async def test_an_expired_certificate_is_refused_by_the_handshake(secure: Secure) -> None:
    await joined(secure)
    own = Journal(secure.folder / "agent-n1").node_key(x509.new_key)
    path = forged(secure, issuing(secure), "n1", key=own, start=time.time() - 2 * DAY)
    client = await secure.client(identity=path)
    client.trust._ends_at = time.time() + DAY  # A client would not show it.
    client.trust._seen = client.trust._seen
    with pytest.raises((Unavailable, Unauthenticated)):
        await client.call("GET", "/v1/nodes/n1", dict)


async def test_a_node_that_is_deleted_or_whose_credential_is_revoked_is_refused_at_once(secure: Secure) -> None:
    _, client = await joined(secure)
    assert await sees_itself(client)
    token = await secure.credential("n1")
    await secure.store.commit(Delete(token.key, token.meta.version))
    assert not await sees_itself(client)


async def test_a_second_agent_of_a_known_name_is_refused(secure: Secure) -> None:
    await joined(secure)
    link, _ = await secure.agent("n1", await secure.token("join", "join:second"), folder="other")
    with pytest.raises(Conflict):
        await link.join()


async def test_an_ordered_renewal_gives_the_node_another_key_and_ends_the_old_one(secure: Secure) -> None:
    link, client = await joined(secure)
    old = secure.folder / "old.pem"
    old.write_text((secure.folder / "agent-n1" / "node.pem").read_text())
    before = await secure.credential("n1")
    await link.renew_credential()
    after = await secure.credential("n1")
    assert after.spec.key != before.spec.key
    assert await sees_itself(client)
    stolen = await secure.client(identity=old)
    assert await sees_itself(stolen), "the old one is good for the overlap"
    with pytest.raises(Forbidden):
        await stolen.call("POST", "/v1/nodes/n1/credential", dict, body={"secret": "ab" * 32})
    secure.clock.ahead = 2 * HOUR
    assert not await sees_itself(stolen)
    assert await sees_itself(client)


async def test_people_show_tokens_without_a_certificate(secure: Secure) -> None:
    admin = await secure.admin()
    assert (await admin.call("GET", "/v1", dict))["you"]["identity"] == "user:ani"
    with pytest.raises(Unauthenticated):
        await (await secure.client()).call("GET", "/v1/nodes", dict)


# Servers.


async def test_an_agent_refuses_a_server_whose_certificate_is_for_another_name(tmp_path: Path) -> None:
    async with secure_api(tmp_path, hosts=("other.example",)) as secure:
        link, _ = await secure.agent("n1", await secure.token("join", "join:first"))
        with pytest.raises(Unavailable, match=r"[Cc]ertificate"):
            await link.join()
        assert await secure.store.get(Key("node", "", "n1")) is None


async def test_the_certificate_of_a_node_is_not_one_of_a_server(secure: Secure) -> None:
    await joined(secure)
    presented = x509.read(x509.split_bundle((secure.folder / "agent-n1" / "node.pem").read_text())[0])
    assert presented.hosts == ()
    text = x509.split_bundle((secure.folder / "tls" / "server.pem").read_text())[0]
    assert x509.read(text).uris == (), "and a server is no node"


# The authority.


async def test_the_key_of_the_authority_cannot_be_read(secure: Secure) -> None:
    stored = await secure.store.get(KEY)
    assert isinstance(stored, Authority)
    assert "PRIVATE" not in stored.spec.certificates[0].key, "it is sealed"
    admin = await secure.admin()
    for path in ("/v1/authorities/cluster", "/v1/authorities", "/v1/ca"):
        body = await admin.request("GET", path)
        assert stored.spec.certificates[0].key.encode() not in body
        assert b"PRIVATE" not in body
    viewer = await secure.client(await secure.token("viewer", "user:budi"))
    _, node = await joined(secure)
    for client in (viewer, node):
        with pytest.raises(Forbidden):
            await client.request("GET", "/v1/authorities")
        with pytest.raises(Forbidden):
            await client.call("POST", "/v1/ca/rotate", dict, body={})


async def test_a_server_with_another_key_for_secrets_does_not_make_an_authority_of_its_own() -> None:
    store = MemoryStore()
    await CertificateAuthority(store, SystemClock(), Sealer.of("one")).ensure(CLUSTER)
    with pytest.raises(Invalid, match="cannot decrypt"):
        await CertificateAuthority(store, SystemClock(), Sealer.of("other")).ensure(CLUSTER)


async def test_of_two_servers_that_start_at_once_one_makes_the_authority() -> None:
    store, sealer = MemoryStore(), Sealer.of("one")
    first, second = (CertificateAuthority(store, SystemClock(), sealer) for _ in range(2))
    await first.ensure(CLUSTER)
    await second.ensure(CLUSTER)
    assert first.fingerprint == second.fingerprint != ""


async def end_overlap(secure: Secure) -> None:
    """As if the time of the old authority were over."""
    found = await secure.store.get(KEY)
    assert isinstance(found, Authority)
    ended = [msgspec.structs.replace(each, until=1.0 if each.until else 0.0) for each in found.spec.certificates]
    await secure.store.commit(Put(found.changed(spec=AuthoritySpec(certificates=tuple(ended)))))
    await secure.authority.refresh()


async def test_a_rotation_is_survived_by_nodes_and_by_tokens_made_before_it(secure: Secure) -> None:
    link, client = await joined(secure)
    early = await secure.token("join", "join:early")
    admin = await secure.admin()
    answer = await admin.call("POST", "/v1/ca/rotate", dict, body={})
    assert len(answer["certificates"]) == 2
    secure.take_up_certificate()

    assert await sees_itself(client), "its certificate is of the old authority, which is trusted yet"
    late, _ = await secure.agent("n2", early)
    await late.join()  # The server has a certificate of the new one, which the old one signed.
    fresh, _ = await secure.agent("n3", await secure.token("join", "join:late"))
    await fresh.join()

    await link.renew_certificate()
    await end_overlap(secure)
    await secure.authority.forget_ended()
    secure.take_up_certificate()
    assert len((await admin.call("GET", "/v1/ca", dict))["certificates"]) == 1
    await link.renew_certificate()
    assert await sees_itself(client), "it trusts the new authority and has a certificate of it"


async def test_a_certificate_of_an_authority_that_was_dropped_is_refused(secure: Secure) -> None:
    dropped = issuing(secure)
    await joined(secure)
    await (await secure.admin()).call("POST", "/v1/ca/rotate", dict, body={})
    secure.take_up_certificate()
    own = Journal(secure.folder / "agent-n1").node_key(x509.new_key)
    client = await secure.client(identity=forged(secure, dropped, "n1", key=own, life=30 * DAY))
    assert await sees_itself(client)
    await end_overlap(secure)
    with pytest.raises(Unauthenticated, match="no longer trusted"):
        await client.call("GET", "/v1/nodes/n1", dict)


async def test_an_overlap_that_nodes_would_not_survive_is_refused(secure: Secure) -> None:
    with pytest.raises(Invalid, match="overlap"):
        await (await secure.admin()).call("POST", "/v1/ca/rotate", dict, body={"overlap_seconds": 60})


async def test_an_authority_of_the_administrator_takes_the_place_of_the_clusters_own(secure: Secure) -> None:
    own = x509.make_authority("Example authority", now=time.time(), seconds=DAY)
    replaced = CertificateAuthority(secure.store, secure.clock, Sealer.of("a key for tests"), own=own)
    await replaced.ensure(CLUSTER)
    assert replaced.fingerprint == x509.fingerprint(own.certificate)
    stored = await secure.store.get(KEY)
    assert isinstance(stored, Authority)
    assert stored.spec.certificates[0].key == "", "its key stays in the administrator's file"
    assert len(replaced.certificates) == 2


async def test_without_an_authority_there_is_none_to_read() -> None:
    from mandor.api.settings import ApiSettings
    from tests.api.conftest import running_api

    async with MemoryStore() as store, running_api(store, ApiSettings()) as api:
        with pytest.raises(NotFound):
            await (await api.client()).call("GET", "/v1/ca", dict)
