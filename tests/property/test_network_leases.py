"""Addresses of instances over random histories: never two live instances with one address, and names keep theirs."""

from hypothesis import given
from hypothesis import strategies as st

from mandor.network.leases import LeaseTable, address_at, room_of, with_lease, with_seen

SLICE = "10.92.3.0/28"
STEPS = st.lists(st.tuples(st.sampled_from(["start", "end", "lose"]), st.integers(0, 19)), max_size=60)


@given(STEPS)
def test_no_address_belongs_to_two_live_instances(steps: list[tuple[str, int]]) -> None:
    table = LeaseTable(SLICE)
    live: dict[str, str] = {}
    names: dict[str, str] = {}
    for number, (what, which) in enumerate(steps):
        name = f"default/web-{which}"
        if what == "end":
            live.pop(names.pop(name, ""), None)
        elif what == "lose":
            table = with_seen(LeaseTable(SLICE), live.items())
        elif name not in names:
            uid = f"u{number}"
            found = with_lease(table, uid, name, {*live, uid})
            if found is None:
                assert len(live) == room_of(SLICE), "an address is refused only if none is free"
                continue
            place = found.position(uid)
            assert place is not None
            table, names[name] = found, uid
            live[uid] = address_at(SLICE, place)
        assert len(set(live.values())) == len(live)
        for uid, address in live.items():
            place = table.position(uid)
            assert place is not None
            assert address_at(SLICE, place) == address


@given(st.permutations(range(8)))
def test_an_instance_gets_the_address_that_the_last_one_of_its_name_had(order: list[int]) -> None:
    table = LeaseTable(SLICE)
    first: dict[int, int | None] = {}
    for each in range(8):
        found = with_lease(table, f"old-{each}", f"default/web-{each}", {f"old-{each}"})
        assert found is not None
        table, first[each] = found, found.position(f"old-{each}")
    live = set()
    for each in order:
        live.add(f"new-{each}")
        found = with_lease(table, f"new-{each}", f"default/web-{each}", live)
        assert found is not None
        table = found
        assert table.position(f"new-{each}") == first[each]
