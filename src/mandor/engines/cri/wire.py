"""Messages and methods of the Container Runtime Interface (v1) that the engine uses."""

from typing import Any, NamedTuple

from mandor.lib.wire import Fields, make_messages

_ONE_SANDBOX: Fields = {1: ("pod_sandbox_id", "string")}
_ONE_CONTAINER: Fields = {1: ("container_id", "string")}

MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Int64Value": {1: ("value", "int64")},
    "UInt64Value": {1: ("value", "uint64")},
    "KeyValue": {1: ("key", "string"), 2: ("value", "string")},
    "VersionResponse": {2: ("runtime_name", "string"), 3: ("runtime_version", "string")},
    "StatusResponse": {1: ("status", "RuntimeStatus")},
    "RuntimeStatus": {1: ("conditions", "*RuntimeCondition")},
    "RuntimeCondition": {
        1: ("type", "string"),
        2: ("status", "bool"),
        3: ("reason", "string"),
        4: ("message", "string"),
    },
    # Sandboxes.
    "PodSandboxMetadata": {
        1: ("name", "string"),
        2: ("uid", "string"),
        3: ("namespace", "string"),
        4: ("attempt", "uint32"),
    },
    "PodSandboxConfig": {
        1: ("metadata", "PodSandboxMetadata"),
        2: ("hostname", "string"),
        3: ("log_directory", "string"),
        4: ("dns_config", "DNSConfig"),
        5: ("port_mappings", "*PortMapping"),
        6: ("labels", "map"),
        8: ("linux", "LinuxPodSandboxConfig"),
    },
    "DNSConfig": {1: ("servers", "*string"), 2: ("searches", "*string"), 3: ("options", "*string")},
    "PortMapping": {1: ("protocol", "int32"), 2: ("container_port", "int32"), 3: ("host_port", "int32")},
    "LinuxPodSandboxConfig": {1: ("cgroup_parent", "string"), 2: ("security_context", "SandboxSecurity")},
    "SandboxSecurity": {
        1: ("namespace_options", "NamespaceOption"),
        6: ("privileged", "bool"),
        9: ("seccomp", "SecurityProfile"),
    },
    "NamespaceOption": {1: ("network", "int32"), 2: ("pid", "int32"), 3: ("ipc", "int32")},
    "RunPodSandboxRequest": {1: ("config", "PodSandboxConfig"), 2: ("runtime_handler", "string")},
    "OneSandbox": _ONE_SANDBOX,
    "ListPodSandboxRequest": {1: ("filter", "PodSandboxFilter")},
    "PodSandboxFilter": {1: ("id", "string"), 3: ("label_selector", "map")},
    "ListPodSandboxResponse": {1: ("items", "*PodSandbox")},
    "PodSandbox": {
        1: ("id", "string"),
        2: ("metadata", "PodSandboxMetadata"),
        3: ("state", "int32"),
        4: ("created_at", "int64"),
        5: ("labels", "map"),
    },
    "PodSandboxStatusResponse": {1: ("status", "PodSandboxStatus")},
    "PodSandboxStatus": {1: ("id", "string"), 3: ("state", "int32"), 5: ("network", "PodSandboxNetworkStatus")},
    "PodSandboxNetworkStatus": {1: ("ip", "string")},
    # Containers.
    "ImageSpec": {1: ("image", "string")},
    "Mount": {
        1: ("container_path", "string"),
        2: ("host_path", "string"),
        3: ("readonly", "bool"),
        5: ("propagation", "int32"),
    },
    "LinuxContainerResources": {
        1: ("cpu_period", "int64"),
        2: ("cpu_quota", "int64"),
        3: ("cpu_shares", "int64"),
        4: ("memory_limit_in_bytes", "int64"),
        9: ("unified", "map"),
        10: ("memory_swap_limit_in_bytes", "int64"),
    },
    "Capability": {1: ("add_capabilities", "*string"), 2: ("drop_capabilities", "*string")},
    "ContainerSecurity": {
        1: ("capabilities", "Capability"),
        2: ("privileged", "bool"),
        3: ("namespace_options", "NamespaceOption"),
        5: ("run_as_user", "Int64Value"),
        6: ("run_as_username", "string"),
        7: ("readonly_rootfs", "bool"),
        11: ("no_new_privs", "bool"),
        12: ("run_as_group", "Int64Value"),
        13: ("masked_paths", "*string"),
        14: ("readonly_paths", "*string"),
        15: ("seccomp", "SecurityProfile"),
    },
    "SecurityProfile": {1: ("profile_type", "int32"), 2: ("localhost_ref", "string")},
    "LinuxContainerConfig": {1: ("resources", "LinuxContainerResources"), 2: ("security_context", "ContainerSecurity")},
    "ContainerMetadata": {1: ("name", "string"), 2: ("attempt", "uint32")},
    "ContainerConfig": {
        1: ("metadata", "ContainerMetadata"),
        2: ("image", "ImageSpec"),
        3: ("command", "*string"),
        4: ("args", "*string"),
        5: ("working_dir", "string"),
        6: ("envs", "*KeyValue"),
        7: ("mounts", "*Mount"),
        9: ("labels", "map"),
        11: ("log_path", "string"),
        15: ("linux", "LinuxContainerConfig"),
    },
    "CreateContainerRequest": {
        **_ONE_SANDBOX,
        2: ("config", "ContainerConfig"),
        3: ("sandbox_config", "PodSandboxConfig"),
    },
    "OneContainer": _ONE_CONTAINER,
    "StopContainerRequest": {**_ONE_CONTAINER, 2: ("timeout", "int64")},
    "ListContainersRequest": {1: ("filter", "ContainerFilter")},
    "ContainerFilter": {1: ("id", "string"), 3: ("pod_sandbox_id", "string"), 4: ("label_selector", "map")},
    "ListContainersResponse": {1: ("containers", "*Container")},
    "Container": {
        1: ("id", "string"),
        2: ("pod_sandbox_id", "string"),
        4: ("image", "ImageSpec"),
        5: ("image_ref", "string"),
        6: ("state", "int32"),
        7: ("created_at", "int64"),
        8: ("labels", "map"),
    },
    "ContainerStatusRequest": {**_ONE_CONTAINER, 2: ("verbose", "bool")},
    "ContainerStatusResponse": {1: ("status", "ContainerStatus"), 2: ("info", "map")},
    "ContainerStatus": {
        1: ("id", "string"),
        3: ("state", "int32"),
        5: ("started_at", "int64"),
        6: ("finished_at", "int64"),
        7: ("exit_code", "int32"),
        10: ("reason", "string"),
        11: ("message", "string"),
        12: ("labels", "map"),
        15: ("log_path", "string"),
    },
    "ExecRequest": {
        **_ONE_CONTAINER,
        2: ("cmd", "*string"),
        3: ("tty", "bool"),
        4: ("stdin", "bool"),
        5: ("stdout", "bool"),
        6: ("stderr", "bool"),
    },
    "ExecResponse": {1: ("url", "string")},
    "ContainerEvent": {1: ("container_id", "string"), 2: ("container_event_type", "int32")},
    # Statistics.
    "ListContainerStatsRequest": {1: ("filter", "ContainerStatsFilter")},
    "ContainerStatsFilter": {1: ("id", "string"), 3: ("label_selector", "map")},
    "ListContainerStatsResponse": {1: ("stats", "*ContainerStats")},
    "ContainerStats": {1: ("attributes", "ContainerAttributes"), 2: ("cpu", "CpuUsage"), 3: ("memory", "MemoryUsage")},
    "ContainerAttributes": {1: ("id", "string"), 3: ("labels", "map")},
    "CpuUsage": {1: ("timestamp", "int64"), 2: ("usage_core_nano_seconds", "UInt64Value")},
    "MemoryUsage": {1: ("timestamp", "int64"), 2: ("working_set_bytes", "UInt64Value")},
    # Images.
    "ImageRequest": {1: ("image", "ImageSpec"), 2: ("verbose", "bool")},
    "ImageStatusResponse": {1: ("image", "Image"), 2: ("info", "map")},
    "Image": {
        1: ("id", "string"),
        2: ("repo_tags", "*string"),
        3: ("repo_digests", "*string"),
        4: ("size", "uint64"),
    },
    "ListImagesResponse": {1: ("images", "*Image")},
    "ImageFsInfoResponse": {1: ("image_filesystems", "*FilesystemUsage")},
    "FilesystemUsage": {2: ("fs_id", "FilesystemIdentifier")},
    "FilesystemIdentifier": {1: ("mountpoint", "string")},
    "PullImageRequest": {1: ("image", "ImageSpec"), 2: ("auth", "AuthConfig")},
    "AuthConfig": {
        1: ("username", "string"),
        2: ("password", "string"),
        4: ("server_address", "string"),
        5: ("identity_token", "string"),
    },
    "PullImageResponse": {1: ("image_ref", "string")},
}

messages = make_messages("mandor.cri", MESSAGES)

CREATED, RUNNING, EXITED, UNKNOWN = range(4)
SANDBOX_READY = 0
TCP, UDP = 0, 1
OF_THE_POD, OF_THE_CONTAINER, OF_THE_NODE = range(3)


class Method(NamedTuple):
    path: str
    request: str
    response: str
    streams: bool = False


def _runtime(name: str, request: str, response: str, *, streams: bool = False) -> Method:
    return Method(f"/runtime.v1.RuntimeService/{name}", request, response, streams)


def _image(name: str, request: str, response: str) -> Method:
    return Method(f"/runtime.v1.ImageService/{name}", request, response)


VERSION = _runtime("Version", "Empty", "VersionResponse")
STATUS = _runtime("Status", "Empty", "StatusResponse")
RUN_SANDBOX = _runtime("RunPodSandbox", "RunPodSandboxRequest", "OneSandbox")
STOP_SANDBOX = _runtime("StopPodSandbox", "OneSandbox", "Empty")
REMOVE_SANDBOX = _runtime("RemovePodSandbox", "OneSandbox", "Empty")
LIST_SANDBOXES = _runtime("ListPodSandbox", "ListPodSandboxRequest", "ListPodSandboxResponse")
SANDBOX_STATUS = _runtime("PodSandboxStatus", "OneSandbox", "PodSandboxStatusResponse")
CREATE = _runtime("CreateContainer", "CreateContainerRequest", "OneContainer")
START = _runtime("StartContainer", "OneContainer", "Empty")
STOP = _runtime("StopContainer", "StopContainerRequest", "Empty")
REMOVE = _runtime("RemoveContainer", "OneContainer", "Empty")
LIST = _runtime("ListContainers", "ListContainersRequest", "ListContainersResponse")
CONTAINER_STATUS = _runtime("ContainerStatus", "ContainerStatusRequest", "ContainerStatusResponse")
REOPEN_LOG = _runtime("ReopenContainerLog", "OneContainer", "Empty")
EXEC = _runtime("Exec", "ExecRequest", "ExecResponse")
EVENTS = _runtime("GetContainerEvents", "Empty", "ContainerEvent", streams=True)
STATS = _runtime("ListContainerStats", "ListContainerStatsRequest", "ListContainerStatsResponse")
IMAGE_STATUS = _image("ImageStatus", "ImageRequest", "ImageStatusResponse")
LIST_IMAGES = _image("ListImages", "Empty", "ListImagesResponse")
REMOVE_IMAGE = _image("RemoveImage", "ImageRequest", "Empty")
IMAGE_DISKS = _image("ImageFsInfo", "Empty", "ImageFsInfoResponse")
PULL = _image("PullImage", "PullImageRequest", "PullImageResponse")


def make(message: str, **fields: Any) -> Any:
    return messages[message](**fields)
