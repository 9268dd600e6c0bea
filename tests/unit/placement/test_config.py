"""The scheduler's configuration: Kubernetes' shape and precedence, and a line for every mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.lib.delay import Delay
from mandor.model.meta import Key
from mandor.placement.built_in import DEFAULTS
from mandor.placement.config import SchedulerConfig, default_config, read_config
from mandor.placement.cycle import decide
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.plugin_factory import Registered
from mandor.placement.framework.points import POINTS, FilterPlugin, ScorePlugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import NodeView
from mandor.placement.plugin_source import find_plugins
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template


class Custom(FilterPlugin, ScorePlugin):
    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        return True

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return 0


class CustomOne(Custom):
    name = "CustomOne"


class CustomTwo(Custom):
    name = "CustomTwo"


class OtherSort(PrioritySort):
    name = "OtherSort"


REGISTRY = {**find_plugins(points=[]), **{cls.name: Registered(cls) for cls in (CustomOne, CustomTwo, OtherSort)}}


def read(text: str) -> SchedulerConfig:
    return read_config(text, REGISTRY, filename="config.yaml")


def make(text: str) -> dict[str, Profile]:
    return ProfileFactory(DETACHED).profiles(read(text), REGISTRY)


def names(profile: Profile, point: str = "filter") -> list[str]:
    if point == "score":
        return [f"{plugin.name}={weight}" for plugin, weight in profile.scores]
    plugins: Any = getattr(profile, {"filter": "filters", "bind": "binds", "preFilter": "pre_filters"}[point])
    return [plugin.name for plugin in plugins]


def mistakes(text: str) -> list[tuple[int, str, str | None]]:
    with pytest.raises(Invalid) as caught:
        read(text)
    errors: Any = caught.value.facts["errors"]
    assert caught.value.facts["file"] == "config.yaml"
    assert str(caught.value).startswith(f"config.yaml:{errors[0]['line']}: ")
    return [(each["line"], each["message"], each["hint"]) for each in errors]


@pytest.mark.req("S1-28")
def test_without_a_file_the_defaults_are_on() -> None:
    made = ProfileFactory(DETACHED).profiles(default_config(REGISTRY), REGISTRY)["default"]
    usual = default_profile()
    assert made.filter_names == usual.filter_names
    assert names(made, "score") == names(usual, "score")
    assert names(made, "bind") == ["DefaultBinder"]
    assert made.plain == usual.plain is True
    assert names(make("profiles: []\n")["default"]) == names(usual)


KUBERNETES = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 16
percentageOfNodesToScore: 50
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
profiles:
  - schedulerName: default-scheduler
    plugins:
      score:
        disabled:
        - name: PodTopologySpread
        enabled:
        - name: NodeResourcesFit
          weight: 5
      multiPoint:
        disabled:
        - name: VolumeRestrictions
    pluginConfig:
      - name: NodeResourcesFit
        args:
          apiVersion: kubescheduler.config.k8s.io/v1
          kind: NodeResourcesFitArgs
          scoringStrategy:
            type: RequestedToCapacityRatio
            resources:
            - name: cpu
              weight: 3
            requestedToCapacityRatio:
              shape:
              - utilization: 0
                score: 0
              - utilization: 100
                score: 10
      - name: DefaultPreemption
        args:
          minCandidateNodesPercentage: 10
  - schedulerName: no-scoring-scheduler
    plugins:
      preScore:
        disabled:
        - name: '*'
      score:
        disabled:
        - name: '*'
"""


@pytest.mark.req("S1-28", "S1-30", "S1-31", "S0-3")
def test_a_kubernetes_configuration_loads_unchanged() -> None:
    config = read(KUBERNETES)
    assert config.ignored == ("clientConnection", "leaderElection", "parallelism", "percentageOfNodesToScore")
    assert config.pause == Delay(first_seconds=2, most_seconds=20)
    made = make(KUBERNETES)
    assert list(made) == ["default", "no-scoring-scheduler", "baremetal"]
    assert made["no-scoring-scheduler"].scores == ()
    assert made["no-scoring-scheduler"].pre_scores == ()
    assert names(made["no-scoring-scheduler"]) == names(default_profile())
    scores = names(made["default"], "score")
    assert scores[0] == "NodeResourcesFit=5", "named at the point itself, it comes first"
    assert not any(each.startswith("PodTopologySpread") for each in scores)
    assert "PodTopologySpread" in names(made["default"])
    fit = made["default"].plugin("NodeResourcesFit")
    assert isinstance(fit, NodeResourcesFit)
    assert fit._args.scoring_strategy.type == "RequestedToCapacityRatio"


# The examples of Kubernetes' own documentation of multiPoint.


def points(yaml: str) -> Profile:
    indented = "".join(f"    {line}\n" for line in yaml.strip("\n").splitlines())
    return make(f"profiles:\n- plugins:\n{indented}")["default"]


@pytest.mark.req("S1-38")
def test_multi_point_enables_a_plugin_wherever_it_serves() -> None:
    made = points("multiPoint: {enabled: [{name: CustomOne, weight: 4}]}")
    assert names(made)[-1] == "CustomOne"
    assert names(made, "score")[-1] == "CustomOne=4"


@pytest.mark.req("S1-38")
def test_a_star_turns_all_defaults_off() -> None:
    made = points("""
multiPoint:
  disabled: [{name: '*'}]
  enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: CustomTwo}, {name: CustomOne}]
""")
    assert [each.plugin.name for each in made.enabled if each.plugin.name != "DefaultBinder"] == [
        "PrioritySort",
        "CustomTwo",
        "CustomOne",
    ]


@pytest.mark.req("S1-31", "S1-38")
def test_a_default_that_is_named_changes_its_weight_and_keeps_its_place() -> None:
    usual = [each.split("=")[0] for each in names(default_profile(), "score")]
    made = names(points("multiPoint: {enabled: [{name: NodeAffinity, weight: 9}]}"), "score")
    assert [each.split("=")[0] for each in made] == usual
    assert "NodeAffinity=9" in made


@pytest.mark.req("S1-31")
def test_weight_zero_means_one() -> None:
    assert "NodeAffinity=1" in names(points("multiPoint: {enabled: [{name: NodeAffinity, weight: 0}]}"), "score")
    assert "NodeAffinity=1" in names(points("multiPoint: {enabled: [{name: NodeAffinity}]}"), "score")


@pytest.mark.req("S1-38")
def test_a_points_own_list_wins_over_multi_point() -> None:
    made = points("""
multiPoint: {enabled: [{name: CustomOne, weight: 1}, {name: CustomTwo}]}
score: {enabled: [{name: CustomTwo, weight: 7}]}
filter: {disabled: [{name: CustomOne}]}
""")
    scores = names(made, "score")
    assert (scores[0], scores[-1]) == ("CustomTwo=7", "CustomOne=1")
    assert sum(each.startswith("CustomTwo") for each in scores) == 1
    assert "CustomOne" not in names(made)
    assert "CustomTwo" in names(made)


@pytest.mark.req("S1-38")
def test_the_order_is_overrides_then_multi_point_then_the_points_own() -> None:
    made = points("""
multiPoint:
  disabled: [{name: '*'}]
  enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodePorts}, {name: NodeUnschedulable}]
filter:
  enabled: [{name: CustomOne}, {name: NodeUnschedulable}]
""")
    assert names(made) == ["NodeUnschedulable", "NodePorts", "CustomOne"]


@pytest.mark.req("S1-31")
def test_a_points_star_leaves_only_its_own_list() -> None:
    made = points("filter: {disabled: [{name: '*'}], enabled: [{name: CustomTwo}, {name: NodePorts}]}")
    assert names(made) == ["CustomTwo", "NodePorts"]
    assert "NodePorts" in names(made, "preFilter")


def test_another_sort_takes_the_place_of_the_default() -> None:
    made = points("queueSort: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}]}")
    assert made.queue_sort.name == "PrioritySort"


# Mistakes.


@pytest.mark.req("S1-8")
def test_two_queue_sorts_are_refused_with_line_and_hint() -> None:
    ((line, text, hint),) = mistakes(
        "profiles:\n- plugins:\n    queueSort:\n      enabled:\n      - name: OtherSort\n"
    )[:1]
    assert line == 5
    assert "exactly one QueueSort plugin must be enabled, not PrioritySort and OtherSort" in text
    assert hint is not None
    assert "disable the other" in hint


@pytest.mark.req("S1-40")
def test_profiles_with_different_queue_sorts_are_refused() -> None:
    text = """\
profiles:
- schedulerName: default
- schedulerName: other
  plugins:
    queueSort:
      disabled: [{name: '*'}]
      enabled:
      - name: OtherSort
"""
    ((line, message, _),) = mistakes(text)
    assert (line, "all profiles share one QueueSort plugin" in message) == (8, True)


SCORE = "profiles:\n- plugins:\n    score:\n      enabled:\n      - name: {}\n        weight: {}\n"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (
            SCORE.format("NodeResourceFit", 1),
            5,
            "there is no plugin NodeResourceFit",
            "did you mean `NodeResourcesFit`?",
        ),
        (SCORE.format("VolumeZone", 1), 5, "there is no plugin VolumeZone", "does not exist here"),
        (SCORE.format("NodePorts", 1), 5, "NodePorts does not serve score", "it serves preFilter, filter"),
        (SCORE.format("NodeAffinity", -1), 6, "-1 is not a weight", None),
        (SCORE.format("NodeAffinity", 1.5), 6, "1.5 is not a weight", None),
        (SCORE.format("NodeAffinity", "true"), 6, "True is not a weight", None),
        (SCORE.format("NodeAffinity", "heavy"), 6, "'heavy' is not a weight", None),
        ("profiles:\n- plugins:\n    scores: {}\n", 3, "there is no such point", "did you mean `score`?"),
        ("profiles:\n- plugins:\n    score: []\n", 3, "`enabled` and `disabled` belong here", None),
        ("profiles:\n- plugins:\n    score:\n      enable: []\n", 4, "unknown key `enable`", "did you mean `enabled`?"),
        (
            "profiles:\n- plugins:\n    filter:\n      disabled:\n      - name: NodePort\n",
            5,
            "no plugin NodePort",
            "NodePorts",
        ),
        (
            "profiles:\n- plugins:\n    filter:\n      enabled:\n      - NodePorts\n",
            5,
            "`name` is missing",
            "- name: PLUGIN",
        ),
        (
            "profiles:\n- plugins:\n    filter:\n      enabled: [{name: A, wait: 1}]\n",
            4,
            "unknown key `wait`",
            "weight",
        ),
        ("profiles:\n- plugin: {}\n", 2, "unknown key `plugin`", "did you mean `plugins`?"),
        ("profiles:\n- ties: last\n", 2, "`last` is not one of spread, first", None),
        ("profiles:\n- tie: first\n", 2, "unknown key `tie`", "did you mean `ties`?"),
        ("profile: []\n", 1, "unknown key `profile`", "did you mean `profiles`?"),
        ("profiles: {}\n", 1, "a list belongs here", None),
        ("profiles:\n- 3\n", 2, "a profile is a mapping", None),
        ("profiles:\n- schedulerName: a\n- schedulerName: a\n", 3, "is defined twice", "another name"),
        ("profiles:\n- schedulerName: ''\n", 2, "must be a string", None),
        ("kind: Deployment\n", 1, "is not a scheduler configuration", None),
        ("apiVersion: v1\n", 1, "is not known", "kubescheduler.config.k8s.io/v1"),
        ("- a\n", 1, "a configuration is a mapping", None),
        ("a: [\n", 2, "", None),
        ("", 1, "0 documents", None),
        ("profiles: []\n---\nprofiles: []\n", 1, "2 documents", None),
        ("podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 10\n", 1, "pauses from 20 to 10 seconds", None),
        ("podMaxBackoffSeconds: x\n", 1, "expected a whole number, got the text 'x'", None),
        (
            "profiles:\n- pluginConfig:\n  - name: NodePorts\n    args: {x: 1}\n",
            4,
            "NodePorts takes no arguments",
            None,
        ),
        ("profiles:\n- pluginConfig:\n  - name: BinPack\n    args: {lo: 1}\n", 4, "unknown key `lo`", "low"),
        ("profiles:\n- pluginConfig:\n  - name: BinPack\n    args:\n      low: 90\n", 4, "percentages", None),
        ("profiles:\n- pluginConfig:\n  - name: BinPack\n    args: 7\n", 4, "arguments are a mapping", None),
        ("profiles:\n- pluginConfig:\n  - name: BinPak\n", 3, "there is no plugin BinPak", "did you mean `BinPack`?"),
        ("profiles:\n- pluginConfig:\n  - name: BinPack\n  - name: BinPack\n", 4, "configured twice", None),
        ("profiles:\n- pluginConfig:\n  - args: {}\n", 3, "`name` is missing", None),
        (
            "extenders:\n- {urlPrefix: 'http://h', filterVerb: p}\n- {urlPrefix: 'http://h', filterVerb: q}\n",
            3,
            "listed twice",
            None,
        ),
        ("extenders:\n- filterVerb: x\n", 2, "`urlPrefix` is missing", None),
        ("extenders:\n- urlPrefix: http://h\n", 2, "a filterVerb, prioritizeVerb, bindVerb, preemptVerb", None),
        ("extenders:\n- {urlPrefix: 'http://h', prioritizeVerb: p}\n", 2, "a weight of 1 or more", None),
        ("extenders:\n- {urlPrefix: 'file:///h', filterVerb: p}\n", 2, "is not a URL", None),
    ],
)
def test_an_error_names_its_line(text: str, line: int, message: str, hint: str | None) -> None:
    found = mistakes(text)
    assert any(line == at and message in said for at, said, _ in found), found
    if hint is not None:
        assert any(hint in (given or "") for _, _, given in found), found


def test_all_errors_are_reported_together_in_line_order() -> None:
    text = SCORE.format("Odd", -1) + "- schedulerName: b\n  plugins: {filter: {enabled: [{name: Odder}]}}\n"
    assert [line for line, _, _ in mistakes(text)] == [5, 6, 8]


def test_a_profile_selects_how_ties_are_broken() -> None:
    table = Table()
    for name in ("c", "b", "a"):
        table.set_node(make_node(name))
    spread, first = (make(f"profiles: [{{{ties}}}]")["default"] for ties in ("", "ties: first"))

    def chosen(profile: Profile, workload: str) -> str:
        request = PlacementRequest(
            Key("instance", "default", workload), Shape.of(make_template()), identity=Identity("default", workload, "")
        )
        return decide(profile, request, table.snapshot()).node

    workloads = [f"w{number}" for number in range(20)]
    assert {chosen(first, each) for each in workloads} == {"a"}
    assert {chosen(spread, each) for each in workloads} == {"a", "b", "c"}


def test_no_bind_plugin_is_a_mistake() -> None:
    text = "profiles:\n- plugins:\n    bind:\n      disabled: [{name: '*'}]\n"
    assert "no Bind plugin is enabled" in mistakes(text)[0][1]


# What changes and what stays.


def test_a_plugin_whose_arguments_did_not_change_is_not_made_again() -> None:
    workshop = ProfileFactory(DETACHED)
    text = "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args: {{ignoredResources: [{}]}}\n"
    before = workshop.profiles(read(text.format("gpu")), REGISTRY)["default"]
    after = workshop.profiles(read(text.format("disk")), REGISTRY)["default"]
    assert after.plugin("NodeResourcesFit") is not before.plugin("NodeResourcesFit")
    assert after.plugin("NodeAffinity") is before.plugin("NodeAffinity"), "it keeps what it knows"


def test_each_profile_has_plugins_of_its_own() -> None:
    made = make("profiles:\n- schedulerName: a\n- schedulerName: b\n")
    assert list(made) == ["a", "b", "default", "baremetal"]
    assert made["a"].plugin("NodeAffinity") is not made["b"].plugin("NodeAffinity")


PLUGINS = st.sampled_from([*REGISTRY, "*", "Nobody"])
LISTED = st.lists(
    st.builds(lambda name, weight: {"name": name, "weight": weight}, PLUGINS, st.integers(-1, 3)), max_size=4
)
SET = st.fixed_dictionaries({}, optional={"enabled": LISTED, "disabled": LISTED})
PROFILE = st.fixed_dictionaries({"plugins": st.dictionaries(st.sampled_from([*POINTS, "multiPoint"]), SET, max_size=4)})


@given(profiles=st.lists(PROFILE, max_size=2))
def test_a_configuration_is_refused_or_makes_profiles_that_can_be_used(profiles: list[dict[str, Any]]) -> None:
    text = json.dumps({"profiles": [{"schedulerName": f"p{index}", **each} for index, each in enumerate(profiles)]})
    try:
        made = make(text)
    except Invalid:
        return
    for profile in made.values():
        assert profile.queue_sort is not None
        assert profile.binds
        assert all(weight >= 1 for _, weight in profile.scores)
        for served in (profile.filters, profile.pre_filters, profile.binds):
            assert len({plugin.name for plugin in served}) == len(served)


def test_the_defaults_are_named_once() -> None:
    assert len({cls.name for cls, _ in DEFAULTS}) == len(DEFAULTS)


WEIGHED = """\
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        resources:
        - {{name: cpu, weight: 1}}
        - {{name: {}, weight: 3}}
"""


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("memroy", "did you mean `memory`?"),
        ("ephemeral-storge", "did you mean `ephemeral-storage`?"),
        ("gpus", "did you mean `gpu`?"),
        ("bananas", "write cpu, memory, disk, hugepages-SIZE, or VENDOR/KIND for devices"),
        ("hugepages-2Zi", "did you mean `hugepages-2Mi`?"),
    ],
)
def test_a_resource_that_does_not_exist_is_an_error_with_its_line(name: str, hint: str) -> None:
    assert mistakes(WEIGHED.format(name)) == [
        (
            8,
            f"`profiles[0].pluginConfig[0].args.scoringStrategy.resources[1].name`: there is no resource {name!r}",
            hint,
        )
    ]


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("ephemeral-storage", "disk"),
        ("nvidia.com/gpu", "nvidia/gpu"),
        ("example.com/licence", "example.com/licence"),
        ("hugepages-2Mi", "hugepages-2mi"),
        ("gpu", "gpu"),
    ],
)
def test_a_resource_name_of_kubernetes_is_counted_under_its_name_here(name: str, counted: str) -> None:
    args: Any = read(WEIGHED.format(name)).profiles[0].args["NodeResourcesFit"]
    assert [each.name for each in args.scoring_strategy.resources] == ["cpu", counted]


def test_an_extender_and_ignored_resources_take_the_names_of_kubernetes() -> None:
    config = read(
        "extenders:\n- urlPrefix: http://127.0.0.1:1\n  filterVerb: f\n"
        "  managedResources: [{name: nvidia.com/gpu, ignoredByScheduler: true}]\n"
        "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n"
        "    args: {ignoredResources: [amd.com/gpu, hugepages-1Gi], ignoredResourceGroups: [intel.com]}\n"
    )
    plugin: Any = ProfileFactory(DETACHED).profiles(config, REGISTRY)["default"].plugin("NodeResourcesFit")
    ignored = [each for each in ("nvidia/gpu", "amd/gpu", "hugepages-1gi", "intel/fpga") if plugin._args.ignores(each)]
    assert ignored == ["nvidia/gpu", "amd/gpu", "hugepages-1gi", "intel/fpga"]
    assert not plugin._args.ignores("gpu")
    assert not plugin._args.ignores("cpu")


ADDED = """\
profiles:
- schedulerName: default
- schedulerName: edge
  pluginConfig:
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - {key: place, operator: In, values: [edge]}
            - {key: cores, operator: Gt, values: ["4"]}
          - matchFields:
            - {key: metadata.name, operator: In, values: [spare]}
        preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 50
          preference: {matchExpressions: [{key: disk, operator: Exists}]}
"""


@pytest.mark.req("S1-28")
def test_added_affinity_holds_for_all_instances_of_the_profile() -> None:
    made = make(ADDED)
    table = Table()
    table.set_node(make_node("plain", labels={"place": "centre", "cores": "8"}))
    table.set_node(make_node("small", labels={"place": "edge", "cores": "4"}))
    table.set_node(make_node("odd", labels={"place": "edge", "cores": "8.5"}))
    request = PlacementRequest(Key("instance", "default", "web-0"), Shape.of(make_template()), profile="edge")
    waits = decide(made["edge"], request, table.snapshot())
    assert not waits.node
    assert waits.message == (
        "0/3 nodes fit: 3 NodeAffinity (not `place in [edge]` and `cores integer > 4` or `node in [spare]`, "
        "which the profile edge adds)"
    )
    assert decide(made["default"], request, table.snapshot()).node
    table.set_node(make_node("large", labels={"place": "edge", "cores": "8"}))
    assert decide(made["edge"], request, table.snapshot()).node == "large"
    table.set_node(make_node("spare", labels={"disk": "ssd"}))
    assert decide(made["edge"], request, table.snapshot()).node == "spare", "it has a disk, which is preferred"


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("{key: a, operator: Gt, values: ['4.5']}", "is not a rule"),
        ("{key: a, operator: In}", "In needs at least one value"),
        ("{key: a, operator: Exists, values: [b]}", "Exists takes no values"),
        ("{key: a, operator: Is, values: [b]}", "`Is` is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
    ],
)
def test_a_wrong_term_of_added_affinity_is_reported_with_its_line(term: str, message: str) -> None:
    text = ADDED.replace("{key: place, operator: In, values: [edge]}", term)
    ((line, said, _),) = mistakes(text)
    assert line == 11
    assert message in said
