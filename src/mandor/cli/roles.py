"""Rules of roles as text."""

from typing import Any


def rule_text(rule: dict[str, Any]) -> str:
    """Format a rule on one line."""
    text = f"{','.join(rule['verbs'])} on {','.join(rule['kinds'])}"
    text += f" in {','.join(rule['namespaces'])}" if "namespaces" in rule else ""
    text += f" named {','.join(rule['names'])}" if "names" in rule else ""
    labels = ",".join(f"{key}={value}" for key, value in rule.get("labels", {}).items())
    return text + (f" labelled {labels}" if labels else "")
