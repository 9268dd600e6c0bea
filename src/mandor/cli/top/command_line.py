"""Parser of commands typed after `:`."""

from dataclasses import dataclass

from mandor.cli.kinds import Kind
from mandor.cli.top.view import kind_words
from mandor.errors import Invalid
from mandor.lib.words import did_you_mean

QUIT = frozenset({"q", "q!", "qa", "quit", "exit"})
HELP = frozenset({"h", "help", "?"})
NAMESPACE = frozenset({"ns", "namespace", "namespaces"})
ABOUT = {
    "logs": "logs",
    "log": "logs",
    "explain": "explain",
    "why": "explain",
    "describe": "describe",
    "desc": "describe",
}
EVERYWHERE = frozenset({"all", "*", "-A"})


@dataclass(frozen=True, slots=True)
class Typed:
    """A parsed command; `verb` is quit, help, view, namespace, logs, explain or describe."""

    verb: str
    kind: Kind | None = None
    name: str = ""
    """Name of an object, or of a namespace (empty for all)."""
    task: str = ""


def read(text: str) -> Typed:
    """Parse a command; raises `Invalid`."""
    word, *rest = text.split() or [""]
    if len(rest) > 2:
        raise Invalid(f"{text!r} has too many words", hint="press ? for the list of commands")
    name, task = [*rest, "", ""][:2]
    if word in QUIT:
        return Typed("quit")
    if word in HELP:
        return Typed("help")
    if word in NAMESPACE and name:
        return Typed("namespace", name="" if name in EVERYWHERE else name)
    if word in ABOUT:
        return Typed(ABOUT[word], name=name.removeprefix("instance/"), task=task)
    kinds = kind_words()
    if word in kinds:
        return Typed("view", kinds[word], name=name)
    known = {*QUIT, *HELP, *ABOUT, *kinds}
    raise Invalid(f"unknown view {word!r}", hint=did_you_mean(word, known))
