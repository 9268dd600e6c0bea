"""Every kind of object with sealed values: how they are listed and sealed anew."""

from collections.abc import Callable, Mapping

import msgspec

from mandor.api import certificates, identities
from mandor.lib.sealing import KeyRing, key_id_of
from mandor.model.acme_account import AcmeAccount
from mandor.model.authority import Authority
from mandor.model.meta import Object
from mandor.model.role import IdentityKey
from mandor.model.secret import Secret, about_value

Seal = Callable[[str, str], str]
"""Returns the sealed text to store, of a sealed text and what it was sealed about."""


def _secret(item: Object, seal: Seal) -> Object:
    assert isinstance(item, Secret)
    values = {key: seal(text, about_value(item, key)) for key, text in item.spec.sealed.items()}
    return item.changed(spec=msgspec.structs.replace(item.spec, sealed=values))


def _authority(item: Object, seal: Seal) -> Object:
    assert isinstance(item, Authority)
    listed = tuple(
        msgspec.structs.replace(each, key=seal(each.key, certificates.about(each.certificate))) if each.key else each
        for each in item.spec.certificates
    )
    return item.changed(spec=msgspec.structs.replace(item.spec, certificates=listed))


def _identity_key(item: Object, seal: Seal) -> Object:
    assert isinstance(item, IdentityKey)
    sealed = item.spec.sealed and seal(item.spec.sealed, identities.about(item.meta.name))
    return item.changed(spec=msgspec.structs.replace(item.spec, sealed=sealed))


def _acme_account(item: Object, seal: Seal) -> Object:
    assert isinstance(item, AcmeAccount)
    return item.changed(spec=msgspec.structs.replace(item.spec, sealed=seal(item.spec.sealed, str(item.key))))


SEALED: Mapping[str, Callable[[Object, Seal], Object]] = {
    Secret.kind: _secret,
    Authority.kind: _authority,
    IdentityKey.kind: _identity_key,
    AcmeAccount.kind: _acme_account,
}
"""Kind → the object with each sealed text replaced. A kind with sealed values that is missing here keeps its data key
in use after a rotation."""


def key_ids(item: Object) -> set[str]:
    """Ids of the keys that the object's values are sealed with."""
    found: set[str] = set()

    def note(text: str, _about: str) -> str:
        found.add(key_id_of(text))
        return text

    if item.kind in SEALED:
        SEALED[item.kind](item, note)
    return found


def resealed(ring: KeyRing, item: Object) -> Object:
    """The object with all of its values sealed with the ring's first key; `Unsealable` if one cannot be opened."""

    def seal(text: str, about: str) -> str:
        return text if key_id_of(text) == ring.key_id else ring.seal(ring.open(text, about), about)

    return SEALED[item.kind](item, seal)
