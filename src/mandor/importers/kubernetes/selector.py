"""Label selectors as alternatives of equal labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from mandor.importers.kubernetes.words import renamed
from mandor.importers.part import Part

WAYS_MOST = 32


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector that matches if all labels of one of its `ways` are equal."""

    ways: tuple[dict[str, str], ...] = ({},)
    beyond: str = ""
    """Part of the selector that equal labels cannot express; empty: none."""

    @property
    def everything(self) -> bool:
        return not self.beyond and self.ways == ({},)


def read_selector(part: Part) -> Selector:
    """Return the selector of `matchLabels` and `matchExpressions`; accounts for all of its keys."""
    same = renamed(part.text_map("matchLabels"))
    choices: list[list[dict[str, str]]] = []
    beyond = ""
    for each in part.parts("matchExpressions"):
        key, operator, values = each.text("key", ""), each.text("operator", ""), each.texts("values")
        if operator == "In" and values:
            choices.append([renamed({key or "": value}) for value in values])
        else:
            beyond = f"`{key} {operator}{_listed(values)}`; other instances are selected by equal labels only"
    ways = []
    count = 1
    for each_choice in choices:
        count *= len(each_choice)
    if count > WAYS_MOST:
        return Selector(beyond=f"{count} ways to be chosen")
    for chosen in product(*choices):
        merged = dict(same)
        if all(merged.setdefault(key, value) == value for labels in chosen for key, value in labels.items()):
            ways.append(merged)
    return Selector(tuple(ways) or ({},), beyond if ways else "nobody can have all of these labels")


def _listed(values: list[str]) -> str:
    return f" [{', '.join(values)}]"[:80] if values else ""


def chooses(selector: Part, labels: Mapping[str, str]) -> bool:
    """Return whether an object with these labels is selected; an empty selector selects all objects."""
    wanted = selector.text_map("matchLabels")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_fits(each, labels) for each in selector.parts("matchExpressions"))


def _fits(expression: Part, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.text("key") or "")
    values = expression.texts("values")
    match expression.text("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise expression.wrong("operator", f"there is no operator {other}")
