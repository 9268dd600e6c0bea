"""Decides whether a join token admits a node, and with which pool and labels. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mandor.errors import Forbidden
from mandor.model.record import JoinTerms, Token

DEFAULT_POOL = "default"
NO_TERMS = JoinTerms()


class Admitted(NamedTuple):
    """Pool and labels of a node that may join."""

    pool: str
    labels: Mapping[str, str]


def admit(terms: JoinTerms, name: str, pool: str, labels: Mapping[str, str]) -> Admitted:
    """Return what a new node gets. The token decides; an agent that asks for something else is refused.

    `pool` is empty where the agent asks for none. Raise `Forbidden` if the terms do not admit the node.
    """
    check_known(terms, name, pool)
    if terms.labels:
        for key, value in labels.items():
            if terms.labels.get(key) != value:
                raise Forbidden(
                    f"the join token does not allow the label {key}={value}",
                    hint="it sets the labels itself: start the agent without --label, or make a token with this label",
                    labels=dict(terms.labels),
                )
    return Admitted(terms.pool or pool or DEFAULT_POOL, terms.labels or labels)


def check_known(terms: JoinTerms, name: str, pool: str) -> None:
    """Raise `Forbidden` if the terms do not admit a node of this name; `pool`: its own, or the one it asks for."""
    if terms.uses == 0:
        raise Forbidden(
            "the join token is used up",
            hint="`mandor token create NAME --role join` makes another; --uses N sets how many nodes it admits",
        )
    if terms.node and terms.node != name:
        raise Forbidden(f"the join token is for the node {terms.node}, not for {name}", node=name)
    if terms.pool and pool not in {"", terms.pool}:
        raise Forbidden(
            f"the join token is for the pool {terms.pool}, not for {pool}",
            hint=f"start the agent with --pool {terms.pool}, or without --pool",
            pool=terms.pool,
        )


def lasting(terms: JoinTerms) -> JoinTerms | None:
    """Return the terms that stay with a node that joined: it gets the same pool and labels if it joins again."""
    kept = msgspec.structs.replace(terms, uses=None)
    return kept if kept != NO_TERMS else None


def used_once(token: Token) -> Token:
    """Return the token with one use less; the same token if its uses are not counted."""
    terms = token.spec.join
    if terms is None or terms.uses is None:
        return token
    left = msgspec.structs.replace(terms, uses=terms.uses - 1)
    return token.changed(spec=msgspec.structs.replace(token.spec, join=left))
