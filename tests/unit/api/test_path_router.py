"""PathRouter finds the same target as Starlette, which tries one pattern after another."""

from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match, Route

from mandor.api.app import OPERATIONS
from mandor.api.http.path_router import PathRouter

PATTERNS = list(dict.fromkeys(each.path for each in OPERATIONS))
WORDS = sorted({word for pattern in PATTERNS for word in pattern.split("/") if not word.startswith("{")})

words = st.sampled_from(WORDS) | st.sampled_from(["", "x", "{name}", "prepare", "a.b", "ä"])
paths = st.lists(words, max_size=6).map(lambda found: "/" + "/".join(found))
patterns = st.lists(st.sampled_from(["a", "b", "{x}", "{y}"]), min_size=1, max_size=3).map(
    lambda found: "/" + "/".join(f"{{n{at}}}" if each.startswith("{") else each for at, each in enumerate(found))
)


async def nobody(*_: object) -> None: ...


def find_with_starlette(tried: list[str], path: str) -> tuple[str, dict[str, str]] | None:
    """Find the target as Starlette does."""
    for pattern in tried:
        match, scope = Route(pattern, nobody).matches({"type": "http", "path": path, "method": "GET"})
        if match is not Match.NONE:
            return pattern, scope["path_params"]
    return None


@given(paths)
def test_every_path_leads_to_the_operation_that_starlette_would_choose(path: str) -> None:
    assert PathRouter({each: each for each in PATTERNS}).find(path) == find_with_starlette(PATTERNS, path)


@given(
    st.lists(patterns, unique=True, max_size=8),
    st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=4).map(lambda found: "/" + "/".join(found)),
)
def test_of_several_matching_patterns_the_first_one_wins(tried: list[str], path: str) -> None:
    assert PathRouter({each: each for each in tried}).find(path) == find_with_starlette(tried, path)
