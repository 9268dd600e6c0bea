"""Label selectors as equal labels and conditions on labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mandor.importers.kubernetes.words import renamed
from mandor.importers.part import Part
from mandor.model.kubernetes_names import fact

RULE_MOST = 480
"""Characters of a rule in a manifest."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector as equal labels and conditions, which must all hold."""

    match: dict[str, str]
    labels: tuple[str, ...] = ()
    """Conditions as a manifest writes them."""
    beyond: str = ""
    """Part of the selector that a manifest cannot express; empty: none."""

    @property
    def everything(self) -> bool:
        return not (self.match or self.labels or self.beyond)


def read_selector(part: Part) -> Selector:
    """Return the selector of `matchLabels` and `matchExpressions`; accounts for all of its keys."""
    match = renamed(part.text_map("matchLabels"))
    labels: list[str] = []
    beyond = ""
    for each in part.parts("matchExpressions"):
        key, operator, values = fact(each.text("key", "") or ""), each.text("operator", ""), each.texts("values")
        if operator == "In" and len(values) == 1 and key not in match:
            match[key] = values[0]
            continue
        rules = _rules(key, operator or "", values)
        if rules is None:
            raise each.wrong("operator", f"{operator} of {len(values)} values is no condition")
        if any(len(rule) > RULE_MOST for rule in rules):
            beyond = f"`{key} {operator}` of {len(values)} values"
        labels += rules
    return Selector(match, tuple(labels), beyond)


def _rules(key: str, operator: str, values: list[str]) -> list[str] | None:
    words = [word(each) for each in values]
    if operator == "In" and values:
        return [f"{key} in [{', '.join(words)}]"]
    if operator == "NotIn" and values:
        return [f"{key} not in [{', '.join(each)}]" for each in cut(words)]
    if operator in {"Exists", "DoesNotExist"} and not values:
        return [f"{key} {'exists' if operator == 'Exists' else 'not exists'}"]
    return None


def cut(words: list[str]) -> Iterator[list[str]]:
    """Yield the words in parts that fit into a rule each."""
    part: list[str] = []
    for each in words:
        if part and sum(len(other) + 2 for other in part) + len(each) > RULE_MOST - 140:
            yield part
            part = []
        part.append(each)
    yield part


def word(value: str) -> str:
    """Return a value as text of a rule."""
    return f'"{value}"' if not value or any(each in value for each in ",[]= ") else value


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
