"""Secrets on their way in and out: sealed before anything is stored, opened for the nodes that need them."""

from mandor.errors import Invalid, Unavailable
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.meta import Object
from mandor.model.secret import Secret, SecretSpec


def sealed(sealer: Sealer | None, stored: Object | None, value: Object) -> Object:
    """A secret as it is stored; a value that is the same as before stays as it was sealed."""
    if not isinstance(value, Secret):
        return value
    before = stored.spec.sealed if isinstance(stored, Secret) else {}
    given = value.spec.values
    if not given and not value.spec.sealed:
        raise Invalid("a secret needs a `value`, or several under `data`", path="spec")
    if sealer is None:
        raise Unavailable("this server has no key for secrets", hint="start it with --secrets-key FILE")
    about = {key: f"{value.key} {key}" for key in (*given, *value.spec.sealed)}
    # Nobody else can seal anything about this very secret: such values were sealed here, a moment ago or earlier.
    if any(_opened(sealer, text, about[key]) is None for key, text in value.spec.sealed.items()):
        raise Invalid("`sealed` is written by the server; give `value` or `data`", path="spec.sealed")
    if not given:
        return value
    kept = {key: text for key, text in before.items() if key in given}
    same = {key for key, text in kept.items() if _opened(sealer, text, about[key]) == given[key]}
    made = {key: kept[key] if key in same else sealer.seal(text, about[key]) for key, text in given.items()}
    return value.changed(spec=SecretSpec(sealed=made))


def opened(sealer: Sealer | None, secret: Secret) -> Secret:
    """With its values, for whoever may have them."""
    if sealer is None:
        raise Unavailable("this server has no key for secrets")
    try:
        data = {key: sealer.open(text, f"{secret.key} {key}") for key, text in secret.spec.sealed.items()}
    except Unsealable as error:
        raise Unavailable(str(error), hint="servers of one cluster share one key for secrets") from error
    return secret.changed(spec=SecretSpec(data=data))


def blanked(secret: Secret) -> Secret:
    """The keys alone."""
    keys = (*secret.spec.sealed, *secret.spec.values)
    return secret.changed(spec=SecretSpec(sealed=dict.fromkeys(keys, "")))


def _opened(sealer: Sealer, text: str, about: str) -> str | None:
    try:
        return sealer.open(text, about)
    except Unsealable:
        return None
