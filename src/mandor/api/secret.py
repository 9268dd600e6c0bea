"""Sealing of secrets before they are stored, and opening for the nodes that need them."""

from mandor.errors import Invalid, Unavailable
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.meta import Object
from mandor.model.secret import Secret, SecretSpec, SecretStatus, about_value


def sealed(sealer: Sealer | None, stored: Object | None, value: Object, *, counted: bool = True) -> Object:
    """Return the secret as it is stored, sealed.

    Unchanged values keep their sealed form, and `status.changes` is incremented if any value differs (`counted`: every
    server knows that field).
    """
    if not isinstance(value, Secret):
        return value
    before = stored.spec.sealed if isinstance(stored, Secret) else {}
    given = value.spec.values
    if not given and not value.spec.sealed:
        raise Invalid("a secret needs a `value`, or several under `data`", path="spec")
    if sealer is None:
        raise Unavailable("this server has no key for secrets", hint="start it with --secrets-key FILE")
    # Only a server can seal a text for this secret and key.
    own = {key: _opened(sealer, text, about_value(value, key)) for key, text in value.spec.sealed.items()}
    if any(text is None for text in own.values()):
        raise Invalid("`sealed` is written by the server; set `value` or `data`", path="spec.sealed")
    old = {key: _opened(sealer, text, about_value(value, key)) for key, text in before.items()}
    status = stored.status if isinstance(stored, Secret) else SecretStatus()
    if isinstance(stored, Secret) and counted and old != (given or own):
        status = SecretStatus(changes=status.changes + 1)
    if not given:
        return value if value.status == status else value.changed(status=status)
    made = {
        key: before[key] if old.get(key) == text else sealer.seal(text, about_value(value, key))
        for key, text in given.items()
    }
    return value.changed(spec=SecretSpec(sealed=made), status=status)


def opened(sealer: Sealer | None, secret: Secret) -> Secret:
    """Return the secret with its values, for callers that may read them."""
    if sealer is None:
        raise Unavailable("this server has no key for secrets")
    try:
        data = {key: sealer.open(text, about_value(secret, key)) for key, text in secret.spec.sealed.items()}
    except Unsealable as error:
        raise Unavailable(
            str(error), hint="this server lacks a key that the cluster uses: `mandor doctor` names it"
        ) from error
    return secret.changed(spec=SecretSpec(data=data))


def blanked(secret: Secret) -> Secret:
    """Return the secret with its keys and without its values."""
    keys = (*secret.spec.sealed, *secret.spec.values)
    return secret.changed(spec=SecretSpec(sealed=dict.fromkeys(keys, "")))


def _opened(sealer: Sealer, text: str, about: str) -> str | None:
    try:
        return sealer.open(text, about)
    except Unsealable:
        return None
