"""Metrics of services have a bounded number of labels."""

from mandor.agent.traffic_metrics import FRONTENDS_MOST, OTHERS, bounded
from mandor.network.base import FrontendKey, Traffic


def test_ports_beyond_the_limit_are_added_up() -> None:
    traffic = {FrontendKey("default", f"s{each}", "http"): Traffic(each, 2, 3, 1) for each in range(FRONTENDS_MOST + 5)}
    found = bounded(traffic)
    assert len(found) == FRONTENDS_MOST + 1
    assert found[OTHERS] == Traffic(0 + 1 + 2 + 3 + 4, 10, 15, 5)
    assert FrontendKey("default", "s4", "http") not in found


def test_few_ports_are_all_listed() -> None:
    assert bounded({OTHERS: Traffic(1)}) == {OTHERS: Traffic(1)}
